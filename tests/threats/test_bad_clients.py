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
from distrust.server.learner.rounds import ReleasedCohort
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


def _played(
    folder: Path, tap: pytest.MonkeyPatch, config: dict[str, Any], lost: float = 0.0, **more: Any
) -> RecordedRun:
    """Play a run without noise. `lost` of its clients vanish at some stage."""
    unsafe, options = lenient(allow_unsafe=True), FleetOptions(block=8)
    return record_run(
        folder, [RunConfig.model_validate(config)], lost, tap, requirements=unsafe, options=options, **more
    )


def _released(recorded: RecordedRun) -> list[ReleasedCohort]:
    return [outcome for outcome in recorded.outcomes() if isinstance(outcome, ReleasedCohort)]


def _summed(recorded: RecordedRun, cohort: str) -> list[int]:
    """Return the slots whose vectors clients sent to the aggregator."""
    posts = [sent for sent in recorded.exchanges if sent.url.path.endswith(f"/{cohort}/masked")]
    return sorted(item["slot"] for post in posts if post.method == "POST" for item in json.loads(post.body)["items"])


@pytest.mark.parametrize(
    ("clients", "corrupt", "cheats"),
    [
        pytest.param(32, 0.1, ({4, 9}, {13}), id="full-graph-both-at-once"),
        pytest.param(32, 0.05, ({4}, set()), id="full-graph-one-box-and-losses"),
        pytest.param(32, 0.05, (set(), {13}), id="full-graph-one-false-share-and-losses"),
        pytest.param(64, 0.05, ({4, 9}, {13}), id="ring-both-at-once-and-losses", marks=pytest.mark.slow),
    ],
)
def test_cheats_and_honest_losses_together_up_to_the_dropout_rate_leave_the_sum_right(
    clients: int, corrupt: float, cheats: tuple[set[int], set[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """d = 0.1: ⌊cn⌋ clients cheat, ⌊dn⌋ - ⌊cn⌋ vanish at some stage.

    The sum is exactly that of all clients but those with bad boxes; the batch names the cheats only.
    """
    boxes, shares = cheats
    lost = int(0.1 * clients) - len(boxes | shares)
    assert len(boxes | shares) == int(corrupt * clients)
    _cheat(monkeypatch, boxes, shares)
    more = {"horizon": 2 * clients, "policy": {"first_batch": clients.bit_length() - 1}}
    config = CONFIG | more | {"intermediary": CONFIG["intermediary"] | {"corrupt": corrupt}}
    recorded = _played(tmp_path, monkeypatch, config, lost / clients)
    view = recorded.views["run"]
    assert (view.cohorts_released, view.cohorts_aborted, view.state) == (2, 0, "finished")
    run = RunConfig.model_validate(config)
    rates = run.intermediary
    sizes = {"min_survivors": rates.min_survivors(clients), "min_honest": rates.min_honest(clients)}
    mechanism = plan(run.mechanism, clients=clients, **sizes, overflow_probability=1e-9, statistic=Reward())
    for outcome in _released(recorded):
        rows, modulus = recorded.truth.rows[outcome.cohort], recorded.truth.moduli[outcome.cohort]
        kept = _summed(recorded, outcome.cohort)
        gone = clients - len(boxes) - len(kept)
        assert min(1, lost) <= gone <= lost  # who vanishes after its vector is in the sum
        assert boxes.isdisjoint(kept)
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
    recorded = _played(tmp_path, monkeypatch, CONFIG)
    reason = "27 clients whose shares were confirmed, at least 29 needed: nothing is released"
    named = f"{reason}; clients that lied: slots 2, 4, 9, 17, 30"
    assert [getattr(outcome, "reason", "") for outcome in recorded.outcomes()] == [named, named]
    view = recorded.views["run"]
    assert view.state == "failed"
    assert named in (view.reason or "")


def test_a_client_that_sends_other_keys_than_it_announced_is_refused_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ticket names the hash of the announced keys. With the other keys its neighbours would refuse the roster."""
    honest = MaskingClient.keys
    monkeypatch.setattr(MaskingClient, "keys", lambda self: Secrets().public if self.slot == 6 else honest(self))
    exchanges: list[Exchange] = []
    clock = JumpingClock(exchanges, "keys", 2 * (N - 1), 60.0)
    config = CONFIG | {"intermediary": CONFIG["intermediary"] | {"stage_seconds": 60.0}}
    recorded = _played(tmp_path, monkeypatch, config, exchanges=exchanges, clock=clock)
    assert [outcome.survivors for outcome in _released(recorded)] == [N - 1, N - 1]
