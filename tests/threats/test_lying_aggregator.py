"""Tests of an aggregator that lies to clients, over HTTP: clients refuse with a named error, and no vector is opened.

Two fleets play one run. The lie is in the aggregator's answers to one fleet or to both, or in the aggregator's own
handling of the messages.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrust.aggregator import protocol
from distrust.aggregator import service as aggregator_service
from distrust.aggregator.service import Aggregator
from distrust.client.cohort.secagg import MaskingClient
from distrust.common.modular import Vector, sum_rows, unpack
from distrust.common.protocol.channels.masked import ModularSum
from distrust.common.protocol.crypto.context import masking
from distrust.common.protocol.crypto.graph import Roster
from distrust.common.protocol.intermediary import store
from distrust.common.protocol.intermediary.deadlines import Clock
from distrust.common.protocol.messages.batch import Batch
from tests.support.aggregator_lies import (
    N,
    another_challenge,
    another_roster,
    another_set,
    attack,
    config,
    foreign_keys,
    liar,
    without_itself,
)
from tests.support.recording import Exchange, JumpingClock, Tamper

pytestmark = pytest.mark.slow


LIES = {
    "foreign-keys": ("shares", foreign_keys, "keys of slot [0-9]+ (are not those whose hash|as it sent them)"),
    "two-rosters": ("shares", another_roster, "not what the server published for all"),
    "two-challenges": ("confirm", another_challenge, "not what the server published for all"),
    "two-sets-that-shared": ("confirm", another_set, "not what the server published for all"),
    "two-members-sets": ("masked", another_set, "not what the server published for all"),
    "two-survivors-sets": ("unmask", another_set, "not what the server published for all"),
}
STAGES = ("keys", "shares", "confirm", "masked", "unmask")
ANSWERED = {"foreign-keys": 1, "two-rosters": 2, "two-challenges": 2, "two-sets-that-shared": 2, "two-members-sets": 3}
"""Number of stages that the fleet that is lied to answers; the other fleet answers one more. Absent: four."""


@pytest.mark.parametrize("name", LIES)
def test_a_story_told_to_some_clients_is_refused_before_they_send_what_it_could_open(name: str, tmp_path: Path) -> None:
    stage, lie, why = LIES[name]
    run = config(64, 0.2) if name == "two-rosters" else config()  # on a ring, so that messages keep their size
    played = attack(tmp_path, run, {"lied": lambda exchanges, caller: liar(stage, lie, exchanges, caller)})
    answered = ANSWERED.get(name, 4)
    assert played.sent == {"lied": set(STAGES[:answered]), "honest": set(STAGES[: answered + 1])}
    named = [reason for reason in played.reasons["lied"] if re.search(f"^refused: .*{why}", reason)]
    assert named, played.reasons
    assert all(reason.startswith("aborted: ") for reason in set(played.reasons["lied"]) - set(named)), played.reasons
    assert played.opened() == {}
    assert (played.view.cohorts_released, played.view.state) == (0, "failed")


def test_foreign_keys_for_all_are_refused_by_all(tmp_path: Path) -> None:
    def story(exchanges: list[Exchange], caller: str) -> Tamper:
        return liar("shares", foreign_keys, exchanges, caller)

    played = attack(tmp_path, config(), {"lied": story, "honest": story})
    for name in ("lied", "honest"):
        keys = ("refused: the roster's keys of slot", "refused: the roster does not hold the keys of slot")
        expected = (*keys, "aborted: ")
        assert [one for one in played.reasons[name] if not one.startswith(expected)] == []
        assert any(reason.startswith("refused: ") for reason in played.reasons[name]), played.reasons
        assert played.sent[name] == {"keys"}
    assert played.view.cohorts_released == 0


def test_clients_that_are_called_lost_to_their_face_say_nothing(tmp_path: Path) -> None:
    story = {"lied": lambda exchanges, caller: liar("unmask", without_itself, exchanges, caller)}
    half = partial(JumpingClock, stage="unmask", messages=N, seconds=60.0)  # the other fleet's clients of both cohorts
    played = attack(tmp_path, config(seconds=60.0), story, half)
    assert "unmask" not in played.sent["lied"]
    assert "unmask" in played.sent["honest"]


def _drop(kept: Callable[[Roster, list[int]], list[int]]) -> Callable[..., list[int]]:
    """Return a replacement of `store.slots` that names other survivors than those with vectors, to all clients."""
    honest = store.slots

    def slots(tx: Any, number: int, stage: str) -> list[int]:
        result = honest(tx, number, stage)
        if stage != "masked":
            return result
        (state,) = (one for one in store.every(tx) if one.number == number)
        return kept(aggregator_service._roster(tx, state), result)

    return slots


def when_masked(clients: int) -> Callable[[list[Exchange]], Clock]:
    """Return a clock for `_drop`: a stage that lacks vectors ends at its deadline, which comes with the last vector."""
    return partial(JumpingClock, stage="masked", messages=2 * clients, seconds=60.0)


def test_inputs_that_the_aggregator_drops_cost_their_clients_and_open_nothing_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The aggregator calls two of 32 lost, to all clients alike, and releases the sum of the 30 others.

    The two refuse. The others reveal the mask keys of the two, never their self seeds. So the two vectors stay under
    their self masks.
    """
    stored, mask = Aggregator._stored, MaskingClient.masked
    vectors: dict[tuple[str, int], Vector] = {}

    def thinned(self: Aggregator, number: int, stage: str) -> Iterator[tuple[int, bytes]]:
        return ((slot, body) for slot, body in stored(self, number, stage) if stage != "masked" or slot > 1)

    def noted(self: MaskingClient, vector: Vector, *rest: bytes) -> bytes:
        vectors[self.cohort.cohort, self.slot] = vector
        return mask(self, vector, *rest)

    monkeypatch.setattr(aggregator_service.store, "slots", _drop(lambda _roster, found: found[2:]))
    monkeypatch.setattr(Aggregator, "_stored", thinned)
    monkeypatch.setattr(MaskingClient, "masked", noted)
    played = attack(tmp_path, config(seconds=60.0), {}, when_masked(N))
    kept = range(2, N)
    refusing = [reason for name in ("lied", "honest") for reason in played.reasons[name]]
    assert set(refusing) == {"the aggregator took the vectors of clients, and calls these clients lost"}
    assert played.opened() == {name: {frozenset(kept)} for name in played.cohorts()}
    assert played.view.cohorts_released == len(played.cohorts()) == 2
    for name, cohort in played.cohorts().items():
        assert played.posted("lied", name, "unmask") | played.posted("honest", name, "unmask") == set(kept)
        channel = masking(cohort)
        summed = sum_rows(np.stack([vectors[name, slot] for slot in kept]), channel.modulus)
        batches = [exchange.answer for exchange in played.exchanges if exchange.url.path.endswith(f"/{name}/batch")]
        answer = json.loads(batches[-1])
        batch = Batch.model_validate_json(json.dumps(answer["batch"]))
        assert isinstance(batch.content, ModularSum)
        assert batch.survivors == len(kept)
        assert unpack(batch.content.body, channel.modulus, channel.dimension).tolist() == summed.tolist()


def test_survivors_that_cut_the_ring_are_refused_by_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """n = 64, d = 0.2: k = 26, t = 14, w = 10. Eleven consecutive places are called lost; 12 in all may be lost."""

    def cut(roster: Roster, found: list[int]) -> list[int]:
        gone = {roster.members[place] for place in roster.ring[:11].tolist()}
        return [slot for slot in found if slot not in gone]

    monkeypatch.setattr(aggregator_service.store, "slots", _drop(cut))
    monkeypatch.setattr(protocol, "check_survivors", lambda _sharing, _survivors: None)
    played = attack(tmp_path, config(64, 0.2, 60.0), {}, when_masked(64))
    reasons = [reason for name in ("lied", "honest") for reason in played.reasons[name]]
    assert any("11 lost clients lie in consecutive places of the ring, and 10 may" in one for one in reasons), reasons
    assert played.view.cohorts_released == 0
    assert "unmask" not in played.sent["lied"] | played.sent["honest"]
    assert played.opened() == {}


def test_survivors_that_an_aggregator_chooses_around_its_colluders_are_refused_by_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n = 64, d = 0.2, c = 0.05: k = 32, t = 17, w = 11. ⌊cn⌋ = 3 clients tell the aggregator all that they know.

    The three stand in 16 consecutive places, and the aggregator calls 12 others of these lost, as many as may be. With
    one more no honest client would be left there. The honest clients refuse, and no sum is determined even with the
    secrets of the three.
    """
    colluders: dict[str, frozenset[int]] = {}

    def around(roster: Roster, found: list[int]) -> list[int]:
        run = [roster.members[place] for place in roster.ring[:16].tolist()]
        colluders[roster.cohort.cohort] = frozenset(run[:3])
        return [slot for slot in found if slot not in run[3:15]]

    monkeypatch.setattr(aggregator_service.store, "slots", _drop(around))
    monkeypatch.setattr(protocol, "check_survivors", lambda _sharing, _survivors: None)
    played = attack(tmp_path, config(64, 0.2, 60.0, 0.05), {}, when_masked(64))
    reasons = [reason for name in ("lied", "honest") for reason in played.reasons[name]]
    named = "refused: 12 lost clients lie in consecutive places of the ring, and 11 may"
    assert named in reasons
    assert all(reason.startswith((named, "aborted: ", "the aggregator took the vectors")) for reason in reasons), (
        reasons
    )
    assert played.sent == {name: set(STAGES[:4]) for name in ("lied", "honest")}
    assert played.view.cohorts_released == 0
    assert colluders.keys() == played.cohorts().keys()
    for name, cohort in played.cohorts().items():
        assert played.determined(cohort, colluders[name]) == set()


def test_boxes_that_go_to_other_clients_open_for_no_client_and_cost_no_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The aggregator chooses the graph. A box is bound to sender and receiver; another client gets a missing share."""
    honest = protocol.route

    def swapped(sharing: Any, bodies: Any) -> dict[int, bytes]:
        result = honest(sharing, bodies)
        slots = list(result)
        return {slot: result[other] for slot, other in zip(slots, [*slots[1:], slots[0]], strict=True)}

    monkeypatch.setattr(aggregator_service.protocol, "route", swapped)
    played = attack(tmp_path, config(), {})
    all_named = "slots " + ", ".join(map(str, range(20))) + " and 12 more"  # the aggregator's word, and it lies
    reason = "0 clients whose shares were confirmed, at least 29 needed: nothing is released"
    named = f"{reason}; clients that lied: {all_named}"
    assert played.reasons == {name: [f"aborted: {named}"] for name in ("lied", "honest")}
    assert played.view.reason is not None
    assert played.view.reason.endswith(named)
    assert played.sent == {name: set(STAGES[:3]) for name in ("lied", "honest")}
    assert (played.view.cohorts_released, played.view.state) == (0, "failed")
    assert played.opened() == {}
