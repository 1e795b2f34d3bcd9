"""An aggregator that lies to clients, over HTTP: a named error before anything is opened.

Two fleets play one run. The lie is in what the aggregator answers to one of them (`tampers`), to both, or in what the
aggregator itself does with the messages (`does`).
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from distrust.aggregator import protocol
from distrust.aggregator import service as aggregator_service
from distrust.aggregator.service import Aggregator
from distrust.client.environments import build_environment, read_spec
from distrust.client.fleet import Fleet, FleetOptions
from distrust.client.randomizer import World
from distrust.client.requirements import PrivacyRequirements
from distrust.client.secagg import MaskingClient, Secrets
from distrust.common.crypto.context import masking
from distrust.common.crypto.graph import KEYS, Roster, bitmap_to_members, members_to_bitmap
from distrust.common.intermediary import store
from distrust.common.messages.batch import Batch, ModularSum
from distrust.common.messages.cohort import Cohort
from distrust.common.modular import Vector, sum_rows, unpack
from distrust.common.run.config import RunConfig
from distrust.common.run.progress import RunView
from distrust.common.wire import decode_blob, encode_blob
from tests.support.mask_algebra import Story, groups
from tests.support.recording import PARTIES, SEED, TOKEN, Exchange, RecordingTransport, Tamper, fleet_over, services

pytestmark = pytest.mark.slow

WORLD = World(build_environment(read_spec({"name": "gaussian-easy", "arms": 2, "seed": SEED})), SEED)
N = 32
Lie = Callable[[dict[str, Any], set[int]], None]
"""Changes the JSON of a stage view; the set holds the slots of the fleet that is lied to."""


def config(clients: int = N, dropout: float = 0.1, seconds: float = 5.0, corrupt: float = 0.0) -> RunConfig:
    return RunConfig.model_validate(
        {
            "run": "run",
            "arms": 2,
            "horizon": 2 * clients,
            "policy": {"first_batch": clients.bit_length() - 1},
            "mechanism": {"name": "distributed-polya", "epsilon": 1.0},
            "intermediary": {"dropout": dropout, "corrupt": corrupt, "minimum": 20, "stage_seconds": seconds},
        }
    )


def _bytes(view: dict[str, Any], name: str) -> bytes:
    raw = decode_blob(view[name])
    assert isinstance(raw, bytes)
    return raw


def _clients(view: dict[str, Any]) -> int:
    return 8 * len(_bytes(view, "members"))  # cohorts of these tests are multiples of 8


def _members(view: dict[str, Any]) -> tuple[int, ...]:
    return bitmap_to_members(_bytes(view, "members"), _clients(view))


def foreign_keys(view: dict[str, Any], own: set[int]) -> None:
    """Keys of the aggregator's own in place of those of all other clients: it could read every box and every mask."""
    members, keys = _members(view), bytearray(_bytes(view, "roster"))
    for i, slot in enumerate(members):
        if slot not in own:
            keys[KEYS * i : KEYS * (i + 1)] = Secrets().public
    view["roster"] = encode_blob(bytes(keys))


def another_roster(view: dict[str, Any], own: set[int]) -> None:
    """One member less: other clients' graph is another one."""
    members, keys = _members(view), _bytes(view, "roster")
    gone = next(i for i, slot in enumerate(members) if slot not in own)
    view["members"] = encode_blob(members_to_bitmap([*members[:gone], *members[gone + 1 :]], _clients(view)))
    view["roster"] = encode_blob(keys[: KEYS * gone] + keys[KEYS * (gone + 1) :])


def another_set(view: dict[str, Any], own: set[int]) -> None:
    """One client less among the members, or among the survivors."""
    members = _members(view)
    gone = next(slot for slot in members if slot not in own)
    view["members"] = encode_blob(members_to_bitmap([slot for slot in members if slot != gone], _clients(view)))


def without_itself(view: dict[str, Any], own: set[int]) -> None:
    """The clients that are lied to are called lost."""
    kept = [slot for slot in _members(view) if slot not in own]
    view["members"] = encode_blob(members_to_bitmap(kept, _clients(view)))


def another_challenge(view: dict[str, Any], own: set[int]) -> None:
    """With two challenges the blinded polynomials give a seed away."""
    del own
    view["challenge"] = encode_blob(bytes(32))


@dataclass
class Played:
    """How an attack ended.

    reasons   why clients refused, by fleet. sent: the stages at which each fleet sent anything.
    """

    view: RunView
    reasons: dict[str, list[str]]
    sent: dict[str, set[str]]
    exchanges: list[Exchange]

    def cohorts(self) -> dict[str, Cohort]:
        """The cohorts that clients asked the aggregator for."""
        found = [one.answer for one in self.exchanges if one.url.path.endswith("/terms")]
        return {one.cohort: one for one in map(Cohort.model_validate_json, found)}

    def answers(self, fleet: str, cohort: str) -> dict[str, dict[str, Any]]:
        """What a fleet was told as each stage opened."""
        path = f"/v1/cohorts/{cohort}/stage"
        views = [json.loads(one.answer) for one in self.exchanges if (one.caller, one.url.path) == (fleet, path)]
        return {view["stage"]: view for view in views if "stage" in view}

    def posted(self, fleet: str, cohort: str, stage: str) -> set[int]:
        """The slots of a fleet that sent a message of this stage."""
        path = f"/v1/cohorts/{cohort}/{stage}"
        posts = [one.body for one in self.exchanges if (one.caller, one.url.path, one.method) == (fleet, path, "POST")]
        return {item["slot"] for body in posts for item in json.loads(body)["items"]}

    def determined(self, cohort: Cohort, colluders: frozenset[int] = frozenset()) -> set[frozenset[int]]:
        """Which sums of vectors the oracle computes from everything that was said, see `tests.support.mask_algebra`."""
        stories = {}
        for fleet in self.sent:
            answers, answered = self.answers(fleet, cohort.cohort), self.posted(fleet, cohort.cohort, "unmask")
            for slot in self.posted(fleet, cohort.cohort, "masked"):
                survivors = frozenset(_members(answers["unmask"])) if slot in answered else None
                stories[slot] = Story(frozenset(_members(answers["masked"])), survivors)
        if not stories:
            return set()
        first = self.answers("honest", cohort.cohort)["shares"]
        roster = Roster(cohort, _bytes(first, "members"), _bytes(first, "roster"))
        graph = [roster.neighbours(slot) if slot in roster else () for slot in range(cohort.clients)]
        return groups(graph, stories, masking(cohort).threshold, colluders)

    def opened(self) -> dict[str, set[frozenset[int]]]:
        """The same of every cohort in which a sum is determined."""
        found = {name: self.determined(cohort) for name, cohort in self.cohorts().items()}
        return {name: sums for name, sums in found.items() if sums}


def liar(stage: str, lie: Lie, exchanges: list[Exchange], caller: str) -> Tamper:
    """Tell one fleet something else as a stage opens."""

    def tamper(url: httpx.URL, raw: bytes) -> bytes:
        if url.host != "aggregator" or not url.path.endswith("/stage"):
            return raw
        view = json.loads(raw)
        if view.get("stage") == stage:
            lie(view, own_slots(exchanges, caller, view["cohort"]))
        return json.dumps(view).encode()

    return tamper


def own_slots(exchanges: list[Exchange], caller: str, cohort: str) -> set[int]:
    posts = [one for one in exchanges if one.caller == caller and one.url.path == f"/v1/cohorts/{cohort}/keys"]
    return {item["slot"] for one in posts for item in json.loads(one.body)["items"]}


class InTurn(RecordingTransport):
    """A fleet's way to all services, on which it gets no more tickets than the other fleet, and then some.

    So each fleet holds about half of every cohort, however fast it is. One that asks for no more tickets is not waited
    for longer than a second.
    """

    granted: dict[str, int]  # by fleet

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/tickets"):
            return await super().handle_async_request(request)
        for _ in range(100):
            if self.granted[self._caller] <= min(self.granted.values()):
                break
            await asyncio.sleep(0.01)
        answer = await super().handle_async_request(request)
        if answer.is_success:
            grants = json.loads(self._exchanges[-1].answer)["grants"]
            self.granted[self._caller] += sum(grant["count"] for grant in grants)
        return answer


def attack(folder: Path, run: RunConfig, tampers: dict[str, Callable[[list[Exchange], str], Tamper]]) -> Played:
    """Let two fleets play; `told` has the lies by fleet."""

    async def whole() -> Played:
        exchanges: list[Exchange] = []
        async with services({name: folder / f"{name}.sqlite3" for name in PARTIES}, exchanges) as (apps, operator):
            server = operator.peer("http://server", TOKEN)
            await server.post("/v1/runs", run, RunView)
            fleets: dict[str, Fleet] = {}
            granted = dict.fromkeys(("lied", "honest"), 0)
            for name in granted:
                tamper = {"tamper": tampers[name](exchanges, name)} if name in tampers else {}
                wire = InTurn(name, apps, exchanges, **tamper)
                wire.granted = granted
                fleets[name] = fleet_over(WORLD, PrivacyRequirements(), FleetOptions(block=4), run, wire)
            serving = asyncio.gather(*(one.serve() for one in fleets.values()), return_exceptions=True)
            ends = await asyncio.wait_for(serving, 100)
            view = await server.get(f"/v1/runs/{run.run}", RunView)
            reasons = {name: list(one.stats.reasons) for name, one in fleets.items()}
            for name, end in zip(fleets, ends, strict=True):
                reasons[name] += [repr(end)] if isinstance(end, BaseException) else []
            return Played(view, reasons, {name: _stages(exchanges, name) for name in fleets}, exchanges)

    return asyncio.run(whole())


def _stages(exchanges: list[Exchange], caller: str) -> set[str]:
    posts = [one for one in exchanges if (one.caller, one.callee, one.method) == (caller, "aggregator", "POST")]
    return {one.url.path.rpartition("/")[2] for one in posts} - {"departures"}


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
"""How many stages the fleet that is lied to answers; the other one answers one more. Two survivors' sets: four."""


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
    played = attack(tmp_path, config(), story)
    assert "unmask" not in played.sent["lied"]


def _drop(kept: Callable[[Roster, list[int]], list[int]]) -> Callable[..., list[int]]:
    """An aggregator that names other survivors than it has vectors of, to all clients alike."""
    honest = store.slots

    def slots(tx: Any, name: str, stage: str) -> list[int]:
        found = honest(tx, name, stage)
        if stage != "masked":
            return found
        return kept(aggregator_service._roster(tx, store.need(tx, name).cohort), found)

    return slots


def test_inputs_that_the_aggregator_drops_cost_their_clients_and_open_nothing_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of 32 are called lost, to all clients alike, and left out of the sum: that of the 30 others is released.

    Both refuse. The others reveal their mask keys, never their self seeds: their vectors stay under their self masks.
    """
    stored, mask = Aggregator._stored, MaskingClient.masked
    vectors: dict[tuple[str, int], Vector] = {}

    def thinned(self: Aggregator, name: str, stage: str) -> Iterator[tuple[int, bytes]]:
        return ((slot, body) for slot, body in stored(self, name, stage) if stage != "masked" or slot > 1)

    def noted(self: MaskingClient, vector: Vector, *rest: bytes) -> bytes:
        vectors[self.cohort.cohort, self.slot] = vector
        return mask(self, vector, *rest)

    monkeypatch.setattr(aggregator_service.store, "slots", _drop(lambda _roster, found: found[2:]))
    monkeypatch.setattr(Aggregator, "_stored", thinned)
    monkeypatch.setattr(MaskingClient, "masked", noted)
    played = attack(tmp_path, config(seconds=20.0), {})
    kept = range(2, N)
    refusing = [reason for name in ("lied", "honest") for reason in played.reasons[name]]
    assert set(refusing) == {"the aggregator took the vectors of clients, and calls these clients lost"}
    assert played.opened() == {name: {frozenset(kept)} for name in played.cohorts()}
    assert played.view.cohorts_released == len(played.cohorts()) == 2
    for name, cohort in played.cohorts().items():
        assert played.posted("lied", name, "unmask") | played.posted("honest", name, "unmask") == set(kept)
        channel = masking(cohort)
        summed = sum_rows(np.stack([vectors[name, slot] for slot in kept]), channel.modulus)
        path = f"/v1/cohorts/{name}/batch"
        answer = json.loads([one.answer for one in played.exchanges if one.url.path == path][-1])
        batch = Batch.model_validate_json(json.dumps(answer["batch"]))
        assert isinstance(batch.content, ModularSum)
        assert batch.survivors == len(kept)
        assert unpack(batch.content.body, channel.modulus, channel.dimension).tolist() == summed.tolist()


def test_survivors_that_cut_the_ring_are_refused_by_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """n = 64, d = 0.2: k = 26, t = 14, w = 10. Eleven consecutive places are called lost, within the 12 that may be."""

    def cut(roster: Roster, found: list[int]) -> list[int]:
        gone = {roster.members[place] for place in roster.ring[:11].tolist()}
        return [slot for slot in found if slot not in gone]

    monkeypatch.setattr(aggregator_service.store, "slots", _drop(cut))
    monkeypatch.setattr(protocol, "check_survivors", lambda _sharing, _survivors: None)
    played = attack(tmp_path, config(64, 0.2, 5.0), {})
    reasons = [reason for name in ("lied", "honest") for reason in played.reasons[name]]
    assert any("11 lost clients lie in consecutive places of the ring, and 10 may" in one for one in reasons), reasons
    assert played.view.cohorts_released == 0
    assert "unmask" not in played.sent["lied"] | played.sent["honest"]
    assert played.opened() == {}


def test_survivors_that_an_aggregator_chooses_around_its_colluders_are_refused_by_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n = 64, d = 0.2, c = 0.05: k = 32, t = 17, w = 11. ⌊cn⌋ = 3 clients tell the aggregator all that they know.

    In 16 consecutive places stand the three, and it calls 12 others lost, as many as may be: one place from a run
    that holds no honest client. The honest ones refuse, and with all that the three know nothing is determined.
    """
    colluders: dict[str, frozenset[int]] = {}

    def around(roster: Roster, found: list[int]) -> list[int]:
        run = [roster.members[place] for place in roster.ring[:16].tolist()]
        colluders[roster.cohort.cohort] = frozenset(run[:3])
        return [slot for slot in found if slot not in run[3:15]]

    monkeypatch.setattr(aggregator_service.store, "slots", _drop(around))
    monkeypatch.setattr(protocol, "check_survivors", lambda _sharing, _survivors: None)
    played = attack(tmp_path, config(64, 0.2, 5.0, 0.05), {})
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
    """A graph of the aggregator's choice: a box is bound to sender and receiver, a missing share elsewhere."""
    honest = protocol.route

    def swapped(sharing: Any, bodies: Any) -> dict[int, bytes]:
        found = honest(sharing, bodies)
        slots = list(found)
        return {slot: found[other] for slot, other in zip(slots, [*slots[1:], slots[0]], strict=True)}

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
