"""Tests the ledger: parallel and sequential composition, budgets that are never overdrawn, against dp-accounting."""

import math
from functools import reduce

import mpmath
import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import privacy_loss_distribution as loss
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from distrust.common.dp.accounting.composition import ADAPTIVE, compose, compose_exactly, pure_curve
from distrust.common.dp.accounting.guarantee import BudgetSpec, Guarantee
from distrust.common.dp.accounting.ledger import Entry, PrivacyLedger, parallel
from distrust.common.dp.accounting.techniques.hockey_stick import rdp
from distrust.common.dp.noise.binomial import Binomial
from distrust.common.dp.noise.law import Pmf
from distrust.common.dp.noise.polya import DiscreteLaplace
from distrust.common.dp.noise.skellam import Skellam
from distrust.common.errors import BadParameter, BudgetExceeded

ORDERS = (1.5, 2.0, 4.0, 8.0, 16.0, 32.0)
NONE = Guarantee(kind="none", epsilon=None, model="none", calibration="exact")


def pure(epsilon: float) -> Guarantee:
    return Guarantee(kind="pure", epsilon=epsilon, claimed=epsilon, model="distributed", calibration="exact")


def approximate(epsilon: float, delta: float) -> Guarantee:
    return Guarantee(kind="approximate", epsilon=epsilon, delta=delta, model="shuffle", calibration="exact")


def renyi(slope: float) -> Guarantee:
    curve = tuple((order, order * slope) for order in ORDERS)
    return Guarantee(kind="renyi", epsilon=1.0, delta=1e-6, rdp=curve, model="distributed", calibration="exact")


def spent(guarantee: Guarantee) -> float:
    return math.inf if guarantee.epsilon is None else guarantee.epsilon


@given(st.sampled_from([pure(0.3), approximate(0.2, 1e-8), renyi(0.01)]), st.integers(2, 12))
@settings(max_examples=20, deadline=None)
def test_n_times_one_is_one_n_times(one: Guarantee, times: int) -> None:
    """compose(e, n) equals n times e written out: a count is never ignored."""
    counted, written_out = compose(((one, times),), 1e-4), compose(((one, 1),) * times, 1e-4)
    assert counted.epsilon == pytest.approx(written_out.epsilon, rel=1e-9)
    assert dict(counted.rdp) == pytest.approx(dict(written_out.rdp))
    assert spent(compose(((one, times + 1),), 1e-4)) >= spent(counted)


@given(st.lists(st.floats(0.01, 3), min_size=1, max_size=9))
def test_pure_guarantees_add_up_without_delta(epsilons: list[float]) -> None:
    total = compose(tuple((pure(epsilon), 1) for epsilon in epsilons))
    assert total.epsilon == pytest.approx(sum(epsilons))
    assert (total.kind, total.delta) == ("pure", 0)


def test_deltas_add_up_where_no_other_delta_is_asked_for() -> None:
    total = compose(((approximate(1.0, 1e-6), 3), (pure(0.5), 2)))
    assert (total.kind, total.delta) == ("approximate", pytest.approx(3e-6))


def test_a_delta_buys_a_smaller_epsilon_and_never_a_larger_one() -> None:
    for times in (2, 10, 100):
        basic = compose(((pure(0.1), times),))
        paid = compose(((pure(0.1), times),), 1e-6)
        assert spent(paid) <= spent(basic)
    assert spent(paid) < 0.5 * spent(basic)
    assert (paid.kind, paid.delta) == ("approximate", 1e-6)
    assert ADAPTIVE in paid.assumptions


def test_renyi_curves_add_up_by_order_and_are_converted_like_dp_accounting() -> None:
    """The Gaussian mechanism with σ = 5, ten times, against the events of dp-accounting."""
    one = renyi(1 / (2 * 25))
    total = compose(((one, 10),), 1e-5)
    oracle = RdpAccountant(list(ORDERS))
    oracle.compose(dp_event.GaussianDpEvent(5.0), 10)
    assert compose(((renyi(1e-5), 1),), 0.1).epsilon == 0.0  # the bound by KL
    assert total.kind == "renyi"
    assert dict(total.rdp)[4.0] == pytest.approx(10 * 4 / 50)
    assert total.epsilon == pytest.approx(oracle.get_epsilon(1e-5), rel=1e-9)


def test_approximate_guarantees_compose_like_the_worst_pair() -> None:
    oracle = PLDAccountant(NeighboringRelation.REPLACE_ONE, value_discretization_interval=1e-4)
    for _ in range(8):  # the library's accountant ignores the count of this event
        oracle.compose(dp_event.RandomizedResponseDpEvent(noise_parameter=2 / (1 + math.e), num_buckets=2))
    assert compose(((pure(1.0), 8),), 1e-3).epsilon == pytest.approx(oracle.get_epsilon(1e-3), rel=1e-3)


@pytest.mark.parametrize(("epsilon", "own"), [(0.01, 0.0), (1.0, 0.0), (1.0, 1e-6), (20.0, 1e-3)])
def test_one_release_at_another_delta_is_the_worst_pair_s_own(epsilon: float, own: float) -> None:
    """δ(ε') = δ + (1 - δ)(e^ε - e^ε')/(e^ε + 1) of one worst pair, at forty digits."""
    one = approximate(epsilon, own) if own else pure(epsilon)
    for delta in (2e-3, 0.1, 0.3):
        with mpmath.workdps(40):
            left = (mpmath.mpf(delta) - mpmath.mpf(own)) / (1 - mpmath.mpf(own))
            want = mpmath.log(mpmath.exp(epsilon) - left * (mpmath.exp(epsilon) + 1))
        found = spent(compose(((one, 1),), delta))
        assert max(0.0, float(want)) <= found <= max(0.0, float(want)) * (1 + 1e-9)


def test_pure_mechanisms_join_renyi_curves_as_randomized_response() -> None:
    p = 1 / (1 + math.exp(-0.7))
    expected = math.log(p**3 * (1 - p) ** -2 + (1 - p) ** 3 * p**-2) / 2
    assert pure_curve(0.7, [3.0])[0] == pytest.approx(expected, rel=1e-12)
    mixed = compose(((renyi(0.01), 2), (pure(0.1), 3)), 1e-6)
    assert dict(mixed.rdp)[4.0] == pytest.approx(0.08 + 3 * pure_curve(0.1, [4.0])[0])


def test_what_cannot_hold_at_a_delta_is_no_guarantee() -> None:
    assert compose(((renyi(0.01), 2),), 0.0).kind == "none"
    assert compose(((approximate(0.1, 1e-6), 5),), 1e-6).kind == "none"
    assert compose(((pure(1.0), 2), (NONE, 1))).kind == "none"
    with pytest.raises(BadParameter):
        compose(())
    with pytest.raises(BadParameter):
        compose(((pure(1.0), 0),))


@pytest.mark.parametrize(
    ("pmf", "shift"),
    [
        pytest.param(DiscreteLaplace(20.0).pmf(), 4, id="discrete-laplace"),
        pytest.param(Skellam(900.0).pmf(), 5, id="skellam"),
        pytest.param(Binomial(4000).pmf(), 6, id="binomial"),
    ],
)
def test_exact_composition_lies_between_the_truth_and_the_generic_bounds(pmf: Pmf, shift: int) -> None:
    """Its ε grows with the count, is above that of one release, and at most the Rényi bound of the law."""
    once, often = (compose_exactly(pmf, shift, count, 1e-6) for count in (1, 10))
    curve = zip(ORDERS, rdp(pmf, shift, ORDERS), strict=True)
    bound = min(10 * one + math.log1p(-1 / a) - math.log(1e-6 * a) / (a - 1) for a, one in curve)
    assert 0 < once < often <= bound * (1 + 1e-3)


@pytest.mark.parametrize(("trials", "chance", "shift"), [(1000, 0.034, 1), (300, 0.9, 4)])
def test_a_biased_law_is_composed_above_every_order_of_ups_and_downs(trials: int, chance: float, shift: int) -> None:
    """A client's values may rise in one release and fall in the next: all splits of four releases are composed."""
    pmf = Binomial(trials, chance).pmf()
    lower = {int(x): float(log) for x, log in zip(pmf.support, pmf.logs, strict=True)}
    upper = {x + shift: log for x, log in lower.items()}
    up, down = (
        loss.from_two_probability_mass_functions(*pair, symmetric=False, value_discretization_interval=2e-4)
        for pair in ((lower, upper), (upper, lower))
    )
    parts = [[up] * k + [down] * (4 - k) for k in range(5)]
    apart = [reduce(lambda a, b: a.compose(b), part).get_epsilon_for_delta(1e-6) for part in parts]
    result = compose_exactly(pmf, shift, 4, 1e-6)
    assert max(apart) * (1 - 1e-3) <= result <= max(apart) * 1.05


def test_the_lost_mass_is_taken_off_delta() -> None:
    coarse = Pmf(0, DiscreteLaplace(5.0).pmf().logs, lost=1e-7)
    assert compose_exactly(coarse, 1, 10, 1e-6) == math.inf
    assert compose_exactly(coarse, 1, 9, 1e-6) < math.inf


def entry(number: int, guarantee: Guarantee, cohorts: int = 4) -> Entry:
    return Entry(f"round {number}", 100, cohorts, guarantee)


def test_unique_clients_compose_in_parallel() -> None:
    ledger = PrivacyLedger().spend(entry(1, pure(0.5))).spend(entry(2, pure(0.7))).spend(entry(3, pure(0.6)))
    assert ledger.total.epsilon == 0.7
    assert list(ledger.classes) == [1]
    assert len(ledger.entries) == 3


def test_returning_clients_compose_in_sequence_class_by_class() -> None:
    ledger = PrivacyLedger(contributions=5).spend(entry(1, pure(0.5))).spend(entry(2, pure(0.5)))
    assert {times: one.epsilon for times, one in ledger.classes.items()} == pytest.approx(
        {1: 0.5, 2: 1.0, 4: 2.0, 5: 2.5}
    )
    assert "at most 5 cohorts" in ledger.total.assumptions[-1]


def test_no_client_can_have_come_more_often_than_there_were_cohorts() -> None:
    ledger = PrivacyLedger(contributions=10).spend(entry(1, pure(0.5), cohorts=3))
    assert ledger.total.epsilon == pytest.approx(1.5)


def test_spending_gives_a_new_ledger_and_leaves_the_old_one() -> None:
    before = PrivacyLedger()
    after = before.spend(entry(1, pure(1.0)))
    assert (len(before.entries), len(after.entries)) == (0, 1)


@pytest.mark.parametrize(
    ("contributions", "budget", "guarantee", "fits"),
    [
        pytest.param(1, (1.0, 0.0), pure(1.0), True, id="exactly-all-of-it"),
        pytest.param(1, (1.0, 0.0), pure(1.0001), False, id="a-little-too-much"),
        pytest.param(4, (1.0, 0.0), pure(0.25), True, id="four-quarters"),
        pytest.param(5, (1.0, 0.0), pure(0.25), False, id="a-fifth-quarter"),
        pytest.param(100, (5.0, 1e-6), pure(0.1), True, id="a-delta-makes-room"),
        pytest.param(100, (5.0, 0.0), pure(0.1), False, id="pure-has-none"),
        pytest.param(1, (9.0, 0.0), approximate(0.1, 1e-9), False, id="delta-in-a-pure-budget"),
        pytest.param(2, (9.0, 1e-9), approximate(0.1, 1e-9), False, id="delta-overdrawn"),
        pytest.param(1, (2.0, 1e-6), renyi(0.01), True, id="renyi-at-the-budgets-delta"),
        pytest.param(1, (99.0, 0.4), NONE, False, id="no-privacy-fits-no-budget"),
    ],
)
def test_an_overdraft_is_refused(
    contributions: int, budget: tuple[float, float], guarantee: Guarantee, *, fits: bool
) -> None:
    ledger = PrivacyLedger(contributions, BudgetSpec(epsilon=budget[0], delta=budget[1]))
    if fits:
        assert ledger.spend(entry(1, guarantee)).total.epsilon is not None
        return
    with pytest.raises(BudgetExceeded, match="the budget is") as refused:
        ledger.spend(entry(1, guarantee))
    assert refused.value.status == 409
    assert refused.value.urn.endswith("budget-exceeded")


@given(st.lists(st.floats(0.01, 1.0), max_size=8), st.integers(1, 6), st.floats(0.05, 3.0))
@settings(max_examples=60, deadline=None)
def test_whatever_was_accepted_is_within_the_budget(epsilons: list[float], times: int, budget: float) -> None:
    ledger = PrivacyLedger(times, BudgetSpec(epsilon=budget))
    for number, epsilon in enumerate(epsilons):
        try:
            ledger = ledger.spend(entry(number, pure(epsilon)))
        except BudgetExceeded:
            assert epsilon * times > budget
    if ledger.entries:
        assert spent(ledger.total) <= budget * (1 + 1e-9)


@pytest.mark.parametrize("times", [1, 2, 20])
def test_what_a_budget_admits_is_stated_within_it_at_its_delta(times: int) -> None:
    """20 · 0.006 is above the budget's δ, and at 0.006 the curves add up to more than its ε."""
    one = renyi(0.02).model_copy(update={"epsilon": 1.9, "delta": 0.006})
    budget = BudgetSpec(epsilon=spent(compose(((one, times),), 0.1)), delta=0.1)
    assert spent(compose(((one, times),))) > budget.epsilon
    ledger = PrivacyLedger(times, budget).spend(entry(1, one, cohorts=20))
    assert [(stated.delta, spent(stated) <= budget.epsilon) for stated in ledger.classes.values()][-1] == (0.1, True)
    assert all(stated.delta <= 0.1 and spent(stated) <= budget.epsilon for stated in ledger.classes.values())


def test_a_spend_is_stated_at_its_own_delta_where_nothing_is_proven_at_the_budgets() -> None:
    once = entry(1, approximate(0.1, 1e-6))
    total = PrivacyLedger(2, BudgetSpec(epsilon=1.0, delta=1e-9), (once,)).total
    assert (total.epsilon, total.delta) == (pytest.approx(0.2), pytest.approx(2e-6))


def test_the_weakest_of_several_kinds_is_their_common_cover() -> None:
    both = parallel([pure(1.0), approximate(0.5, 1e-6)])
    assert (both.kind, both.epsilon, both.delta, both.rdp) == ("approximate", 1.0, 1e-6, ())
    assert parallel([pure(1.0), NONE]).kind == "none"
