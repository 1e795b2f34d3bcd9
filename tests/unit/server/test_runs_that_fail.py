"""Tests that an exception of the server's code, or a run without a measurement, ends that run by name."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrust.common.errors import RunFailed
from distrust.common.protocol.run.listing import RunView
from distrust.server.learner import rounds
from distrust.server.learner.analyzer import Estimated
from distrust.server.learner.learner import Learner
from distrust.server.learner.rounds import LostCohort, ReleasedCohort
from distrust.server.policies.elimination import SuccessiveElimination
from distrust.server.runs import active_run, settlement
from tests.support.in_memory_intermediaries import InMemoryClients, InMemoryIntermediaries
from tests.support.server_harness import REWARDS, ServerHarness, config, serve

Patch = pytest.MonkeyPatch
FIRST = config().policy.model_dump()["first_batch"]


def read_raises(error: Exception) -> Callable[[Patch], None]:
    """Return a patch: the policy raises when it reads the result of its second batch."""
    honest = SuccessiveElimination.read

    def read(self: SuccessiveElimination, arm: int, estimate: Any) -> tuple[float, float]:
        if self._batch > FIRST:
            raise error
        return honest(self, arm, estimate)

    return lambda patch: patch.setattr(SuccessiveElimination, "read", read)


def read_answers(mean: float, radius: float) -> Callable[[Patch], None]:
    honest = SuccessiveElimination.read

    def read(self: SuccessiveElimination, arm: int, estimate: Any) -> tuple[float, float]:
        return (mean, radius) if self._batch > FIRST else honest(self, arm, estimate)

    return lambda patch: patch.setattr(SuccessiveElimination, "read", read)


def from_round_2(module: Any, name: str, broken: Callable[..., Any]) -> Callable[[Patch], None]:
    """Return a patch of a function that calls `broken` from round 2 on. Its first argument with a round decides."""
    honest = getattr(module, name)

    def patched(*args: Any, **kwargs: Any) -> Any:
        number = next(
            (result for one in args if (result := getattr(one, "round", getattr(one, "number", None))) is not None), 1
        )
        return broken(*args) if number > 1 else honest(*args, **kwargs)

    return lambda patch: patch.setattr(module, name, patched)


def divides(*_: Any) -> Any:
    return 1 / 0


def begin_raises(patch: Patch) -> None:
    honest = rounds.plan_round

    def begin(config: Any, number: int, *rest: Any) -> Any:
        return divides() if number > 1 else honest(config, number, *rest)

    patch.setattr("distrust.server.learner.learner.plan_round", begin)


def with_numpy_as_errors() -> Any:
    with np.errstate(all="raise"):
        return np.log(np.zeros(1))


def estimated(value: float, survivors: int) -> Estimated:
    sums = np.array([value])
    return Estimated(sums, sums, np.zeros(1, dtype=np.uint64), np.array([survivors]))


FAULTS = {
    "policy-divides-by-zero": (read_raises(ZeroDivisionError("division by zero")), "round 2: ZeroDivisionError: div"),
    "policy-leaves-a-domain": (read_raises(ValueError("math domain error")), "round 2: ValueError: math domain error"),
    "policy-asserts": (read_raises(AssertionError("no arm is left")), "round 2: AssertionError: no arm is left"),
    "policy-is-out-of-memory": (read_raises(MemoryError("no memory")), "round 2: MemoryError: no memory"),
    "policy-has-no-width": (
        read_answers(0.5, float("nan")),
        "round 2: ArithmeticError: arm 0, batch 6: the estimate is 0.5 in",
    ),
    "policy-has-no-end": (
        read_answers(0.5, float("inf")),
        "round 2: ArithmeticError: arm 0, batch 6: the estimate is 0.5 in",
    ),
    "mechanism-cannot-be-planned": (begin_raises, "round 2: ZeroDivisionError"),
    "analyzer-divides-by-zero": (
        from_round_2(settlement, "analyze", lambda _m, cohort, *_: divides(cohort)),
        "round 2: cohort demo.2.X.1: the analyzer raised: ZeroDivisionError",
    ),
    "analyzer-warns-as-an-error": (
        from_round_2(settlement, "analyze", lambda *_: with_numpy_as_errors()),
        "round 2: cohort demo.2.X.1: the analyzer raised: FloatingPointError",
    ),
    "analyzer-estimates-nothing": (
        from_round_2(settlement, "analyze", lambda *_: estimated(np.nan, 64)),
        "round 2: cohort demo.2.X.1: the analyzer raised: ValidationError",
    ),
    "analyzer-counts-too-many": (
        from_round_2(settlement, "analyze", lambda *_: estimated(1.0, 10**6)),
        "round 2: cohort demo.2.X.1: the learner refused it: BadMessage",
    ),
    "round-cannot-be-told": (from_round_2(active_run, "round_message", divides), "round 2: ZeroDivisionError"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.few(5)
def test_an_exception_in_round_2_ends_the_run_as_failed_with_its_reason_and_for_good(
    tmp_path: Path, intermediaries: InMemoryIntermediaries, monkeypatch: Patch, fault: str
) -> None:
    breaks, reason = FAULTS[fault]
    harness = ServerHarness(tmp_path, intermediaries)
    harness.service.create(config())
    with monkeypatch.context() as broken:
        breaks(broken)
        view = serve(harness, "demo", InMemoryClients(intermediaries, REWARDS))
        assert view.state == "failed"
        assert view.reason is not None
        assert re.sub(r"demo\.2\.\d\.1", "demo.2.X.1", view.reason).startswith(reason)  # any arm's cohort may be first
        assert "\n" not in view.reason
        assert view.snapshot.chosen in {0, 1, 2}  # what the first round told is still there
        assert all(arm.mean is not None and np.isfinite(arm.mean) for arm in view.snapshot.arms)
        assert harness.reader.round_view("demo").state == "failed"
        (last,) = [event for event in harness.reader.events("demo", 0)[0] if event.kind == "failed"]
        assert last.detail == view.reason
        harness.database.close()
        assert restarted(tmp_path, intermediaries) == view
    mended = restarted(tmp_path, intermediaries)
    assert (mended.state, mended.reason) == (view.state, view.reason)


def restarted(path: Path, intermediaries: InMemoryIntermediaries) -> RunView:
    """Return the run as a server sees it that starts on the same database."""
    harness = ServerHarness(path, intermediaries)
    try:
        assert harness.service.running() == []
        return harness.reader.view("demo")
    finally:
        harness.database.close()


def test_nothing_is_released_after_an_analyzer_failed(harness: ServerHarness, monkeypatch: Patch) -> None:
    breaks, _ = FAULTS["analyzer-divides-by-zero"]
    breaks(monkeypatch)
    harness.service.create(config())
    serve(harness, "demo", InMemoryClients(harness.intermediaries, REWARDS))
    cohorts = harness.reader.round_report("demo", 2).cohorts
    assert [cohort.estimate for cohort in cohorts] == [None] * len(cohorts)
    assert sum(isinstance(outcome, ReleasedCohort) for outcome in harness.service.store.outcomes("demo")) == 3


def test_a_run_that_was_left_open_and_cannot_go_on_is_failed_once_at_the_start(
    tmp_path: Path, intermediaries: InMemoryIntermediaries, monkeypatch: Patch
) -> None:
    """The server that stopped could plan round 2; the one that starts cannot."""
    harness = ServerHarness(tmp_path, intermediaries)
    harness.service.create(config())
    serve(harness, "demo", InMemoryClients(intermediaries, REWARDS), until=2)
    harness.database.close()
    monkeypatch.setattr("distrust.server.runs.active_run.round_message", divides)
    first, second = (restarted(tmp_path, intermediaries) for _ in range(2))
    assert (first.state, first.reason) == ("failed", "round 2: ZeroDivisionError: division by zero")
    assert second == first
    again = ServerHarness(tmp_path, intermediaries)
    assert [event.kind for event in again.reader.events("demo", 0)[0]].count("failed") == 1
    again.database.close()


def test_a_fault_in_the_first_round_is_refused_and_leaves_no_run(harness: ServerHarness, monkeypatch: Patch) -> None:
    monkeypatch.setattr(SuccessiveElimination, "clients", property(divides))
    with pytest.raises(RunFailed, match="run demo cannot be planned: ZeroDivisionError: division by zero"):
        harness.service.create(config())
    assert harness.reader.runs().runs == []


@pytest.mark.parametrize("horizon", [96, 200])
def test_a_run_whose_cohorts_were_all_aborted_has_failed_and_counts_them(harness: ServerHarness, horizon: int) -> None:
    harness.service.create(config(horizon=horizon))
    quits = {f"{arm}.{attempt}": 20 for arm in range(3) for attempt in (1, 2)}
    view = serve(harness, "demo", InMemoryClients(harness.intermediaries, REWARDS, quits))
    cohorts = 3 * (horizon // 96)
    assert view.state == "failed"
    assert view.reason is not None
    assert view.reason.startswith(
        f"nothing was measured: no round was closed, {cohorts} of {cohorts} cohorts were aborted; the last one was "
    )
    assert view.reason.endswith(": 12 survivors, needs 29")
    assert view.snapshot.chosen is None


def test_sums_of_a_round_that_was_never_closed_measure_nothing(harness: ServerHarness) -> None:
    harness.service.create(config(horizon=96))
    view = serve(harness, "demo", InMemoryClients(harness.intermediaries, REWARDS, {"1.1": 20}))
    assert (view.state, view.cohorts_released) == ("failed", 2)
    assert view.reason is not None
    assert "1 of 3 cohorts were aborted; the last one was cohort demo.1.1.1: 12 survivors" in view.reason


def test_a_run_that_closed_a_round_and_lost_the_rest_has_finished(harness: ServerHarness) -> None:
    harness.service.create(config(horizon=96 + 192))
    view = serve(
        harness,
        "demo",
        InMemoryClients(harness.intermediaries, REWARDS[:1] * 3, {f"{arm}.1": 20 for arm in range(3)}),
        until=1,
    )
    assert view.state == "running"
    learner = Learner(config(horizon=96 + 192))
    while plan := learner.plan():
        for cohort in plan.cohorts:
            released = ReleasedCohort(cohort=cohort.cohort, sum=[16.0], survivors=cohort.clients)
            learner.absorb(released if plan.number == 1 else LostCohort(cohort=cohort.cohort, reason="too few"))
    assert (learner.finished, learner.fault, len(learner.rounds)) == (True, None, 2)
