"""Tests of clients that cheat in secure aggregation, over HTTP: a cheat loses its own vector only, and is named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrust.client.cohort.secagg import MaskingClient, Secrets
from distrust.client.fleet.fleet import FleetOptions
from distrust.common.bandit.statistics import Reward
from distrust.common.dp.mechanisms import plan
from distrust.common.modular import sum_rows
from distrust.common.protocol.crypto.seal import BOX
from distrust.common.protocol.crypto.share import SHARE_SIZE
from distrust.common.protocol.run.config import RunConfig
from distrust.common.randomness import UnsafeSeededStream
from distrust.server.learner.rounds import LostCohort, ReleasedCohort
from tests.support.limits import lenient
from tests.support.recording import Exchange, JumpingClock, RecordedRun, record_run

N = 32
CONFIG: dict[str, Any] = {
    "run": "run",
    "arms": 2,
    "horizon": 2 * N,
    "policy": {"first_batch": 5},
    "mechanism": {"name": "identity", "via": "aggregator"},
    "intermediary": {"dropout": 0.1, "corrupt": 0.1, "minimum": 20},
}
BOXES, SHARES = {4, 9}, {13}
"""Slots whose boxes open for no neighbour, and slots that return false shares: three of 32, which is ⌊cn⌋."""


def _cheat(tap: pytest.MonkeyPatch, boxes: set[int], shares: set[int]) -> None:
    """Make these slots of every cohort send bad boxes or false shares. They are honest otherwise."""
    make_shares, reveal = MaskingClient.shares, MaskingClient.unmask

    def bad_boxes(self: MaskingClient, *answers: object) -> bytes:
        body = make_shares(self, *answers)  # type: ignore[arg-type]
        return body[: len(body) % BOX] + bytes(len(body) - len(body) % BOX) if self.slot in boxes else body

    def false_shares(self: MaskingClient, *answers: object) -> bytes:
        body = reveal(self, *answers)  # type: ignore[arg-type]
        false = b"\x01".rjust(SHARE_SIZE, b"\x00") * (len(body) // SHARE_SIZE)
        return false if self.slot in shares else body

    tap.setattr(MaskingClient, "shares", bad_boxes)
    tap.setattr(MaskingClient, "unmask", false_shares)


def _released(recorded: RecordedRun) -> list[ReleasedCohort]:
    """Return the outcome that the server committed of each cohort."""
    return [
        ReleasedCohort.model_validate_json(body) for (body,) in recorded.rows("server", "SELECT body FROM outcomes")
    ]


@pytest.mark.parametrize(
    ("boxes", "shares"),
    [
        pytest.param({4}, set(), id="one-box"),
        pytest.param(set(), {13}, id="one-false-share"),
        pytest.param(BOXES, SHARES, id="both-at-once"),
    ],
)
def test_up_to_the_corruption_rate_cheats_cost_themselves_only(
    boxes: set[int], shares: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum is exactly that of all clients but those with bad boxes; the batch names the cheats."""
    _cheat(monkeypatch, boxes, shares)
    config = RunConfig.model_validate(CONFIG)
    recorded = record_run(
        tmp_path,
        [config],
        0.0,
        monkeypatch,
        requirements=lenient(allow_unsafe=True),
        options=FleetOptions(block=8),
    )
    view = recorded.views["run"]
    assert (view.cohorts_released, view.cohorts_aborted, view.state) == (2, 0, "finished")
    mechanism = plan(
        config.mechanism, clients=N, min_survivors=29, min_honest=26, overflow_probability=1e-9, statistic=Reward()
    )
    kept = [slot for slot in range(N) if slot not in boxes]
    for outcome in _released(recorded):
        rows, modulus = recorded.truth.rows[outcome.cohort], recorded.truth.moduli[outcome.cohort]
        summed = sum_rows(np.stack([rows[slot] for slot in kept]), modulus)
        own = mechanism.model_copy(update={"modulus": modulus})
        assert outcome.sum == own.estimate(summed, len(kept), UnsafeSeededStream(0, "none")).tolist()
        assert outcome.survivors == len(kept)
        assert set(outcome.liars) == boxes | shares


def test_cheats_that_end_every_cohort_are_named_in_the_run_and_in_what_the_server_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five of 32 send boxes that do not open, and three may be lost. There is no sum, and the run names the five."""
    _cheat(monkeypatch, {2, 4, 9, 17, 30}, set())
    recorded = record_run(
        tmp_path,
        [RunConfig.model_validate(CONFIG)],
        0.0,
        monkeypatch,
        requirements=lenient(allow_unsafe=True),
        options=FleetOptions(block=8),
    )
    reason = "27 clients whose shares were confirmed, at least 29 needed: nothing is released"
    named = f"{reason}; clients that lied: slots 2, 4, 9, 17, 30"
    kept = recorded.rows("server", "SELECT body FROM outcomes")
    assert [LostCohort.model_validate_json(body).reason for (body,) in kept] == [named, named]
    view = recorded.views["run"]
    assert view.state == "failed"
    assert named in (view.reason or "")


def _summed(recorded: RecordedRun, cohort: str) -> list[int]:
    """Return the slots whose vectors clients sent to the aggregator."""
    posts = [one for one in recorded.exchanges if one.url.path.endswith(f"/{cohort}/masked") and one.method == "POST"]
    return sorted(item["slot"] for post in posts for item in json.loads(post.body)["items"])


@pytest.mark.parametrize(
    ("clients", "boxes", "shares"),
    [
        pytest.param(32, {4}, set(), id="full-graph-one-box"),
        pytest.param(32, set(), {13}, id="full-graph-one-false-share"),
        pytest.param(64, {4, 9}, {13}, id="ring-both-at-once", marks=pytest.mark.slow),
    ],
)
def test_cheats_and_honest_losses_together_up_to_the_dropout_rate_leave_the_sum_right(
    clients: int, boxes: set[int], shares: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """d = 0.1, c = 0.05: ⌊cn⌋ clients cheat, ⌊dn⌋ - ⌊cn⌋ vanish at some stage. Only the cheats are named."""
    lost = int(0.1 * clients) - len(boxes | shares)
    assert len(boxes | shares) == int(0.05 * clients)
    _cheat(monkeypatch, boxes, shares)
    rates = {"dropout": 0.1, "corrupt": 0.05, "minimum": 20}
    policy = {"first_batch": clients.bit_length() - 1}
    config = RunConfig.model_validate(
        CONFIG | {"horizon": 2 * clients, "policy": policy, "intermediary": CONFIG["intermediary"] | rates}
    )
    requirements, options = lenient(allow_unsafe=True), FleetOptions(block=8)
    recorded = record_run(tmp_path, [config], lost / clients, monkeypatch, requirements=requirements, options=options)
    view = recorded.views["run"]
    assert (view.cohorts_released, view.cohorts_aborted, view.state) == (2, 0, "finished")
    spec = config.intermediary
    least, min_honest = spec.min_survivors(clients), spec.min_honest(clients)
    mechanism = plan(
        config.mechanism,
        clients=clients,
        min_survivors=least,
        min_honest=min_honest,
        overflow_probability=1e-9,
        statistic=Reward(),
    )
    for outcome in _released(recorded):
        rows, modulus = recorded.truth.rows[outcome.cohort], recorded.truth.moduli[outcome.cohort]
        kept = _summed(recorded, outcome.cohort)
        assert clients - len(boxes) - lost <= len(kept) < clients - len(boxes)
        assert boxes.isdisjoint(kept)
        summed = sum_rows(np.stack([rows[slot] for slot in kept]), modulus)
        own = mechanism.model_copy(update={"modulus": modulus})
        assert outcome.sum == own.estimate(summed, len(kept), UnsafeSeededStream(0, "none")).tolist()
        assert outcome.survivors == len(kept)
        assert set(outcome.liars) == boxes | shares


def test_a_client_that_sends_other_keys_than_it_announced_is_refused_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ticket names the hash of the announced keys. With the other keys its neighbours would refuse the roster."""
    honest = MaskingClient.keys
    monkeypatch.setattr(MaskingClient, "keys", lambda self: Secrets().public if self.slot == 6 else honest(self))
    exchanges: list[Exchange] = []
    recorded = record_run(
        tmp_path,
        [RunConfig.model_validate(CONFIG | {"intermediary": CONFIG["intermediary"] | {"stage_seconds": 60.0}})],
        0.0,
        monkeypatch,
        exchanges=exchanges,
        clock=JumpingClock(exchanges, "keys", 2 * (N - 1), 60.0),
        requirements=lenient(allow_unsafe=True),
        options=FleetOptions(block=8),
    )
    assert [outcome.survivors for outcome in _released(recorded)] == [N - 1, N - 1]
