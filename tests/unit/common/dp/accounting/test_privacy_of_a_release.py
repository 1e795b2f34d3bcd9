"""Tests that the privacy of a release computes a figure only if asked, and each guarantee once."""

from collections.abc import Callable

import pytest

from distrust.common.bandit.statistics import Reward
from distrust.common.dp.accounting.guarantee import Guarantee
from distrust.common.dp.accounting.profile import (
    SEVERAL_BATCHES,
    SHOWN_DELTA,
    BatchStream,
    Privacy,
    Profile,
    no_privacy,
    of_pure,
)
from distrust.common.dp.mechanisms import Mechanism, MechanismSpec, plan


def guarantee(kind: str, delta: float = 0.0, rdp: tuple[tuple[float, float], ...] = ()) -> Guarantee:
    fields = {"kind": kind, "epsilon": 1.0, "delta": delta, "rdp": rdp, "model": "central", "calibration": "exact"}
    return Guarantee.model_validate(fields)


class Counted:
    """Computes a profile, and counts how often."""

    def __init__(self) -> None:
        self.deltas: list[float] = []

    def profile(self, delta: float) -> Profile:
        self.deltas.append(delta)
        return of_pure(1.0, delta, "exact")


def stated(promise: Callable[[], Guarantee], counted: Counted, stream: BatchStream | None = None) -> Privacy:
    return Privacy(compute_promise=promise, compute_profile=counted.profile, stream=stream)


def test_nothing_is_computed_before_it_is_asked_for() -> None:
    def never() -> Guarantee:
        raise AssertionError("computed")

    counted = Counted()
    privacy = stated(never, counted)
    assert (privacy.profile().delta, privacy.profile(0.01).delta) == (SHOWN_DELTA, 0.01)
    assert counted.deltas == [SHOWN_DELTA, 0.01]
    with pytest.raises(AssertionError, match="computed"):
        _ = privacy.promise


def test_a_promise_is_computed_once_and_needs_no_profile() -> None:
    counted, asked = Counted(), []

    def promise() -> Guarantee:
        asked.append(1)
        return guarantee("pure")

    privacy = stated(promise, counted)
    assert privacy.promise is privacy.promise is privacy.composable
    assert (len(asked), counted.deltas) == (1, [])


def test_an_approximate_promise_composes_by_the_curve_of_its_profile_at_its_own_delta() -> None:
    counted = Counted()
    privacy = stated(lambda: guarantee("approximate", 1e-4), counted)
    assert privacy.composable.rdp == of_pure(1.0, 1e-4, "exact").known
    assert privacy.composable.model_copy(update={"rdp": ()}) == privacy.promise
    assert counted.deltas == [1e-4]
    curved = stated(lambda: guarantee("approximate", 1e-4, ((2.0, 0.5),)), counted)
    assert curved.composable is curved.promise


class Twice:
    """A stream in which a second batch costs as much again."""

    def joint(self, times: int) -> Privacy:
        return stated(lambda: guarantee("pure").model_copy(update={"epsilon": float(times)}), Counted())


def test_a_batch_of_a_stream_does_not_compose() -> None:
    privacy = stated(lambda: guarantee("pure"), Counted(), Twice())
    assert privacy.promise.kind == "pure"
    assert (privacy.composable.kind, privacy.composable.assumptions) == ("none", (SEVERAL_BATCHES,))
    assert privacy.stream is not None
    assert privacy.stream.joint(2).promise.epsilon == 2.0


def test_a_promise_at_another_delta_is_the_profiles_and_is_none_where_that_knows_no_epsilon() -> None:
    privacy = stated(lambda: guarantee("approximate", 1e-4, ((2.0, 0.5),)), Counted())
    assert privacy.at(1e-4) is privacy.promise
    moved = privacy.at(1e-3)
    assert (moved.kind, moved.delta, moved.rdp) == ("approximate", 1e-3, ())
    assert moved.epsilon == of_pure(1.0, 1e-3, "exact").approximate.epsilon
    assert privacy.at(0.0).kind == no_privacy("exact").at(1e-3).kind == "none"


def test_without_honest_noise_no_figure_is_finite() -> None:
    privacy = no_privacy("exact")
    profile = privacy.profile()
    assert (privacy.promise.kind, privacy.law) == ("none", None)
    assert (profile.pure.epsilon, profile.approximate.epsilon, profile.known) == (None, None, ())


@pytest.mark.parametrize("name", ["central-laplace", "distributed-polya", "shuffled-laplace"])
def test_a_guarantee_says_who_claims_what(name: str) -> None:
    delta = 1e-6 if name == "shuffled-laplace" else None
    mechanism: Mechanism = plan(
        MechanismSpec(name=name, epsilon=0.5, delta=delta),
        clients=100,
        min_survivors=90,
        min_honest=80,
        overflow_probability=1e-6,
        statistic=Reward(),
    )
    promise = mechanism.privacy(90, 10).promise
    assert (promise.claimed, promise.model, promise.calibration) == (0.5, mechanism.model, "exact")
    assert mechanism.make_guarantee("pure", float("inf"), ()).kind == "none"
