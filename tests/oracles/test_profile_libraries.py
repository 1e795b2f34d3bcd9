"""Tests profiles against dp-accounting for the laws that it has: its losses, its two accountants, and one bug of it."""

import math
from typing import Any

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution, privacy_loss_mechanism
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant

from distrust.common.dp.accounting.profile import PROFILE_ORDERS, of_pure
from distrust.common.dp.mechanisms import Mechanism, MechanismSpec
from tests.support.planned import planned


def planned_mechanism(name: str, **fields: Any) -> Mechanism:
    spec = MechanismSpec(name=name, **fields)
    return planned(spec, 30)


LAPLACE = planned_mechanism("central-laplace", epsilon=0.7, noise="continuous")
GAUSSIAN = planned_mechanism("central-gaussian", epsilon=0.7, delta=1e-5, noise="continuous")
ON_GRID = planned_mechanism("central-laplace-discrete", epsilon=0.7, precision=5)
GAUSSIAN_ON_GRID = planned_mechanism("local-gaussian", epsilon=0.7, delta=1e-5, precision=5)


def losses() -> dict[str, tuple[Mechanism, Any]]:
    """Return each mechanism with the library's loss of its law."""
    theirs = privacy_loss_mechanism
    deviations = [math.sqrt(one.variance) for one in (GAUSSIAN, GAUSSIAN_ON_GRID)]
    return {
        "laplace": (LAPLACE, theirs.LaplacePrivacyLoss(LAPLACE.scale, sensitivity=LAPLACE.precision)),
        "gaussian": (GAUSSIAN, theirs.GaussianPrivacyLoss(deviations[0], sensitivity=GAUSSIAN.precision)),
        "discrete-laplace": (ON_GRID, theirs.DiscreteLaplacePrivacyLoss(1 / ON_GRID.scale, sensitivity=5)),
        "discrete-gaussian": (GAUSSIAN_ON_GRID, theirs.DiscreteGaussianPrivacyLoss(deviations[1], sensitivity=5)),
    }


@pytest.mark.parametrize("law", ["laplace", "gaussian", "discrete-laplace", "discrete-gaussian"])
@pytest.mark.parametrize("delta", [0.01, 1e-4, 1e-6])
def test_epsilon_at_delta_is_the_library_s_to_nine_digits(law: str, delta: float) -> None:
    mechanism, loss = losses()[law]
    epsilon = mechanism.privacy().profile(delta=delta).approximate.epsilon
    assert loss.get_delta_for_epsilon(epsilon) <= delta * (1 + 1e-9)
    assert loss.get_delta_for_epsilon(epsilon * (1 - 1e-9)) >= delta


@pytest.mark.parametrize(
    ("mechanism", "event"),
    [
        pytest.param(LAPLACE, dp_event.LaplaceDpEvent(LAPLACE.scale / LAPLACE.precision), id="laplace"),
        pytest.param(
            GAUSSIAN, dp_event.GaussianDpEvent(math.sqrt(GAUSSIAN.variance) / GAUSSIAN.precision), id="gaussian"
        ),
    ],
)
@pytest.mark.parametrize("count", [1, 9])
def test_renyi_by_order_is_the_library_s(mechanism: Mechanism, event: Any, count: int) -> None:
    accountant = RdpAccountant(PROFILE_ORDERS, NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(event, count)
    result = mechanism.privacy().profile().repeated(count)
    theirs = accountant._rdp
    assert [epsilon for _, epsilon in result.known] == pytest.approx(list(theirs), rel=1e-9)
    assert result.rdp_how == "exact"


def distributions() -> dict[str, tuple[Mechanism, Any]]:
    """Return each mechanism with the library's distribution of the loss of one release."""
    deviations = [math.sqrt(one.variance) for one in (GAUSSIAN, GAUSSIAN_ON_GRID)]
    of = privacy_loss_distribution
    return {
        "laplace": (LAPLACE, of.from_laplace_mechanism(LAPLACE.scale, sensitivity=LAPLACE.precision)),
        "gaussian": (GAUSSIAN, of.from_gaussian_mechanism(deviations[0], sensitivity=GAUSSIAN.precision)),
        "discrete-laplace": (ON_GRID, of.from_discrete_laplace_mechanism(1 / ON_GRID.scale, sensitivity=5)),
        "discrete-gaussian": (
            GAUSSIAN_ON_GRID,
            of.from_discrete_gaussian_mechanism(deviations[1], sensitivity=5),
        ),
    }


@pytest.mark.parametrize("law", ["laplace", "gaussian", "discrete-laplace", "discrete-gaussian"])
def test_several_releases_cost_no_less_than_the_library_s_composed_losses(law: str) -> None:
    """Ten Rényi orders give an upper bound of the composed losses, at most 35 % above them."""
    mechanism, one = distributions()[law]
    composed = one.self_compose(12).get_epsilon_for_delta(1e-6)
    result = mechanism.privacy().profile(delta=1e-6).repeated(12).approximate
    assert result.how == "bound"
    assert composed * (1 - 1e-3) <= result.epsilon <= 1.35 * composed


def test_our_composition_of_randomized_response_counts_and_their_accountant_does_not() -> None:
    """Their accountant charges one event with count twenty as a single release. Their composed losses count it."""
    epsilon, count = 0.5, 20
    event = dp_event.RandomizedResponseDpEvent(noise_parameter=2 / (1 + math.exp(epsilon)), num_buckets=2)
    forgetful, single = (PLDAccountant(NeighboringRelation.REPLACE_ONE).compose(event, n) for n in (count, 1))
    assert forgetful.get_epsilon(1e-6) == single.get_epsilon(1e-6)
    loss = privacy_loss_distribution.from_randomized_response(event.noise_parameter, 2)
    composed = loss.self_compose(count).get_epsilon_for_delta(1e-6)
    result = of_pure(epsilon, 1e-6, "exact").repeated(count).approximate.epsilon
    assert result is not None
    assert 5 * epsilon < composed * (1 - 1e-3) <= result <= 1.1 * composed
