"""Tests that exact widths of the linear policies hold at their level, and that `paper` ones are as printed.

Failure rates are tested against the exact binomial law: were the true rate the stated one, more failures than the limit
would come once in 10⁶ times, for all actions of a case together. A third of each width must fail that test.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom

from distrust.common.bandit.error_law import Calibration, ErrorLaw
from distrust.server.policies.base import Ask, Estimate
from distrust.server.policies.linear.phases import Phased
from tests.support.laws import Laplace, Normal
from tests.support.policies import Floats, actions, asked, estimates, given_actions, made, played, widths_of

Noise = Callable[[np.random.Generator, tuple[int, ...]], Floats]

ALARM, RUNS, BETA = 1e-6, 20_000, 0.05
CLIENTS = {"bound": 2.0, "deviation": 0.3, "noise": 0.5, "clients": 12}
THETA = np.array([0.5, -0.6, 0.3])


def of_actions(name: str, vectors: Floats, calibration: Calibration, **table: object) -> Phased:
    words = {**given_actions(vectors), "beta": BETA, **table}
    return made(name, len(vectors), horizon=2000, calibration=calibration, **words)  # type: ignore[no-any-return]


def dpe(vectors: Floats, calibration: Calibration = "exact") -> Phased:
    return of_actions("dp-dpe", vectors, calibration, **CLIENTS)


def pe(vectors: Floats, calibration: Calibration = "exact") -> Phased:
    return of_actions("dp-pe", vectors, calibration)


def free(vectors: Floats, model: str = "local", *, core_set: bool = True, calibration: Calibration = "exact") -> Phased:
    return of_actions("almost-free", vectors, calibration, model=model, core_set=core_set)


POLICIES: dict[str, Callable[[Floats], Phased]] = {
    "dp-dpe": dpe,
    "dp-pe": pe,
    "almost-free": free,
    "almost-free-shuffled": lambda vectors: free(vectors, "shuffled"),
    "almost-free-no-core-set": lambda vectors: free(vectors, core_set=False),
}
NOISES: dict[str, tuple[ErrorLaw, Noise]] = {
    "no-noise": (Normal(0.0), lambda _rng, shape: np.zeros(shape)),
    "gaussian": (Normal(6.0), lambda rng, shape: rng.normal(0, 6, shape)),
    "laplace": (Laplace(6.0), lambda rng, shape: rng.laplace(0, 6, shape)),
}


def errors(ask: Ask, vectors: Floats, noise: Noise, rounding: float) -> Floats:
    """Return errors of the means of what was played, many times; shape (RUNS, s)."""
    rng, (arms, clients) = np.random.default_rng(11), played(ask)
    shape = (RUNS, len(arms))
    if ask.decision.kind != "play-design":
        ones = rng.binomial(clients.astype(int), (1 + vectors[arms] @ THETA) / 2, shape)
        return np.asarray(2 * ones / clients - 1 - vectors[arms] @ THETA + noise(rng, shape) / clients)
    times, clients_each = np.array(ask.decision.times), clients[0]
    own = rng.normal(0, CLIENTS["deviation"] / math.sqrt(clients_each), (RUNS, vectors.shape[1])) @ vectors[arms].T
    local = rng.normal(0, 1, shape) * CLIENTS["noise"] / np.sqrt(times * clients_each)
    steps = rng.binomial(int(clients_each), 0.5, shape) * 2 - clients_each
    return np.asarray(own + local + (steps * rounding + noise(rng, shape)) / clients_each)


@pytest.mark.parametrize("law", NOISES)
@pytest.mark.parametrize("policy", POLICIES)
def test_an_exact_width_fails_no_oftener_than_two_events_may(policy: str, law: str) -> None:
    vectors, (known, noise), rounding = actions(), NOISES[law], 0.4
    tested = POLICIES[policy](vectors)
    ask = asked(tested)
    arms, clients = played(ask)
    tested.tell(estimates(ask, (clients * (vectors[arms] @ THETA)).tolist(), known, clients, rounding))
    assert [interval.mean for interval in tested.intervals] == pytest.approx(vectors @ THETA)
    weights = np.array(ask.decision.times) if ask.decision.kind == "play-design" else clients
    root = np.sqrt(weights)[:, np.newaxis]
    fitted = np.linalg.lstsq(root * vectors[arms], root * errors(ask, vectors, noise, rounding).T, rcond=None)[0]
    off = np.abs(vectors @ fitted)  # shape (k, RUNS)
    limit = binom.isf(ALARM / len(vectors), RUNS, 2 * BETA)
    failures = (off > widths_of(tested)[:, np.newaxis]).sum(axis=1)
    assert failures.max() <= limit
    assert (off > widths_of(tested)[:, np.newaxis] / 3).sum(axis=1).max() > limit, "the test sees nothing"


def first_width(policy: Phased, law: ErrorLaw) -> float:
    """Return the one width of the first phase."""
    ask = asked(policy)
    arms, clients = played(ask)
    policy.tell(estimates(ask, [0.0] * len(arms), law, clients))
    (width,) = {round(float(width), 12) for width in widths_of(policy)}
    return width


def test_the_width_of_dp_dpe_is_the_printed_one() -> None:
    """k = d = 4, |U| = 12, h = 2, S = ⌊16 ln ln 4 + 16⌋ = 21, noise of std 3 in a sum, one-sub-Gaussian rewards."""
    noise = 2 * math.sqrt(21 * 4) * 3 / 12
    expected = (math.sqrt(2 * 4 / (12 * 2)) + 0.3 / math.sqrt(12) + noise) * math.sqrt(2 * math.log(1 / BETA))
    assert first_width(dpe(np.eye(4), "paper"), Normal(3.0)) == pytest.approx(expected)


def test_the_width_of_dp_pe_is_that_of_table_4() -> None:
    """k = d = s = 4, h = 21, noise of std 3 in the sum of each action: σ_n = 2d·3·√s/h."""
    expected = (math.sqrt(2 * 4 / 21) + 2 * 4 * 3 * math.sqrt(4) / 21) * math.sqrt(2 * math.log(1 / BETA))
    assert first_width(pe(np.eye(4), "paper"), Normal(3.0)) == pytest.approx(expected)


def test_the_widths_of_almost_free_are_the_printed_gammas() -> None:
    """T = 2000, d = k = 4, q = 4000^{1/ln 2000}, i = 1, Lap(1/ε) with ε = 2; L = ln(4·4·T²) for β = 1/(4kT²)."""
    q, log = 4000 ** (1 / math.log(2000)), math.log(16 * 2000**2)

    def policy(model: str) -> Phased:
        return of_actions("almost-free", np.eye(4), "paper", model=model, beta=None)

    sampled = math.sqrt(16 * log / q)
    assert first_width(policy("central"), Laplace(0.5)) == pytest.approx(sampled + (2 * 16 + 8 * log) / (2 * q))
    clients = 4 * math.ceil(q / 4)  # each client's noise is Lap(1/ε₀); of a sum over n_a its scale is √n_a times that
    of_a_sum = Laplace(0.5 * math.sqrt(clients / 4))
    expected = sampled + 8 / (2 * q) * math.sqrt(clients * log)
    assert first_width(policy("local"), of_a_sum) == pytest.approx(expected)
    assert first_width(policy("shuffled"), of_a_sum) == pytest.approx(expected)


@pytest.mark.parametrize("calibration", ["exact", "paper"])
@pytest.mark.parametrize("make", [pe, free])
def test_fewer_answers_make_wider_intervals(make: Callable[..., Phased], calibration: Calibration) -> None:
    """Half of the clients leave: the widths are those of half the answers, not of what was planned."""
    result = []
    for share in (1.0, 0.5):
        policy = make(actions(), calibration=calibration)
        for _ in range(4):
            ask = asked(policy)
            arms, clients = played(ask)
            policy.tell(estimates(ask, [0.0] * len(arms), Normal(1.0), np.maximum(1, np.floor(clients * share))))
        result.append(widths_of(policy))
    assert (result[1] > result[0]).all()


@pytest.mark.parametrize("calibration", ["exact", "paper"])
def test_an_action_of_which_nothing_came_is_neither_judged_nor_judges(calibration: Calibration) -> None:
    """Shuffled actions: of three orthogonal actions the clients of one all left. Its interval is all there can be."""
    policy = free(np.eye(3), "shuffled", calibration=calibration)
    counts = (10**9, 10**9, 0)
    policy.tell([Estimate(None, (0.9e9, -0.9e9, 0.0), counts, (Normal(1.0),) * 3)])
    lost = next(interval for interval in policy.intervals if interval.arm == 2)
    assert (lost.lower, lost.upper) == (-1.0, 1.0)
    assert 2 in policy.active
    if calibration == "exact":
        assert policy.active == (0, 2)
