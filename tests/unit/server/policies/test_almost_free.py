"""Tests FREE's batches, horizon and widths: as printed for `paper`, mended for `exact`."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from distrust.common.bandit.error_law import Calibration
from distrust.server.policies.linear.almost_free import LEAST_HORIZON, AlmostFree
from tests.support.laws import Laplace
from tests.support.policies import actions, asked, estimates, given_actions, made, played, widths_of

PASSED = [math.ceil(math.exp(n)) for n in range(3, 20)]  # the first horizon beyond each eⁿ
TWO = np.eye(2)


def policy(horizon: int, calibration: Calibration = "exact", vectors: np.ndarray = TWO, **more: float) -> AlmostFree:  # type: ignore[type-arg]
    table: dict[str, object] = {**given_actions(vectors), "beta": 1e-6, **more}
    return made("almost-free", len(vectors), horizon=horizon, calibration=calibration, **table)  # type: ignore[no-any-return]


def lengths(horizon: int, calibration: Calibration = "exact") -> list[float]:
    """Return the lengths of all batches."""
    made = policy(horizon, calibration)
    return [made.length(number) for number in range(1, math.floor(math.log(horizon)))]


@pytest.mark.parametrize("horizon", [LEAST_HORIZON, 20, 3000, *PASSED, 10**9])
def test_exact_batches_leave_more_than_half_of_the_horizon(horizon: int) -> None:
    base = (2 * horizon) ** (1 / math.log(horizon))
    result = lengths(horizon)
    assert result[-1] == pytest.approx(2 * horizon / base**2)
    assert result[0] >= 1
    assert np.divide(result[1:], result[:-1]) == pytest.approx(base)
    assert sum(result) < 0.43 * horizon


@pytest.mark.parametrize("horizon", PASSED)
def test_where_ln_t_passes_a_whole_number_only_a_batch_of_one_is_added(horizon: int) -> None:
    """T = 1,202,604 and 1,202,605 are such a pair."""
    before, after = lengths(horizon - 1), lengths(horizon)
    step = math.log(horizon / (horizon - 1))
    assert len(after) == len(before) + 1
    assert after[0] == pytest.approx(1, abs=3 * step)
    assert after[1:] == pytest.approx(before, rel=4 * step)


@pytest.mark.parametrize("horizon", [3000, 1_202_604, 1_202_605])
def test_the_papers_batches_are_as_printed(horizon: int) -> None:
    base = (2 * horizon) ** (1 / math.log(horizon))
    assert lengths(horizon, "paper") == pytest.approx(
        [base**number for number in range(1, math.floor(math.log(horizon)))]
    )


def test_the_papers_batches_do_not_fit_behind_a_whole_ln_t() -> None:
    assert sum(lengths(1_202_604, "paper")) < 0.4 * 1_202_604
    assert sum(lengths(1_202_605, "paper")) > 1_202_605


def test_what_no_batch_has_room_for_goes_to_the_best_action_known() -> None:
    for calibration, expected in (("exact", {1: 2}), ("paper", {0: 2})):
        made = policy(3000, calibration)  # type: ignore[arg-type]
        assert made.leftover(2) == {0: 1, 1: 1} if calibration == "exact" else {0: 2}
        ask = asked(made)
        arms, clients = played(ask)
        made.tell(estimates(ask, (clients * np.array([0.1, 0.9])[arms]).tolist(), Laplace(1.0), clients))
        assert made.ask(2) is None
        assert made.leftover(2) == expected
        assert made.leftover(0) == {}


@pytest.mark.parametrize("beta", [0.3, 0.05])
def test_the_papers_width_with_a_given_beta_holds_when_few_actions_are_left(beta: float) -> None:
    """Two events of β each: failures of 20,000 batches against the binomial law, a false alarm once in 10⁶ times."""
    runs, rng, theta = 20_000, np.random.default_rng(3), np.array([0.5, -0.6, 0.3])
    vectors = actions(25)
    made = policy(2000, "paper", vectors, beta=beta)
    while len(made.active) > 2:
        ask = asked(made)
        arms, clients = played(ask)
        made.tell(estimates(ask, (100 * clients * (vectors[arms] @ theta)).tolist(), Laplace(2.0), clients))
    ask = asked(made)
    arms, clients = played(ask)
    made.tell(estimates(ask, [0.0] * len(arms), Laplace(2.0), clients))
    width = widths_of(made)[made.active[0]]
    root = np.sqrt(clients)[:, np.newaxis]
    shape = (runs, len(arms))
    means = vectors[arms] @ theta
    noise = rng.laplace(0, 2.0, shape) / clients
    off = 2 * rng.binomial(clients.astype(int), (1 + means) / 2, shape) / clients - 1 - means + noise
    fitted = np.linalg.lstsq(root * vectors[arms], root * off.T, rcond=None)[0]
    failures = int((np.abs(vectors[made.active[0]] @ fitted) > width).sum())
    assert 0 < width < math.inf
    assert failures <= binom.isf(1e-6, runs, 2 * beta)


def test_a_given_beta_does_not_depend_on_how_many_actions_are_left() -> None:
    """L = ln(2/β): of one action left of ten as of ten, for the same design."""
    one, ten = np.array([[1.0]]), np.array([[0.99**n] for n in range(10)])
    widths = []
    for vectors in (one, ten):
        made = policy(3000, "paper", vectors, beta=0.3)
        ask = asked(made)
        arms, clients = played(ask)
        made.tell(estimates(ask, [0.0] * len(arms), Laplace(1.0), clients))
        widths.append(widths_of(made)[0])
    assert widths[0] == pytest.approx(widths[1])
    base, log = 6000 ** (1 / math.log(3000)), math.log(2 / 0.3)
    assert widths[0] == pytest.approx(math.sqrt(4 * log / base) + (2 + 2 * log) / base)
