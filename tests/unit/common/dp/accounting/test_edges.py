"""Tests the edges of the ranges: bounds hold, two figures of one release agree, coarse grids are accepted."""

import math

import numpy as np
import pytest

from distrust.common.dp.accounting.composition import compose
from distrust.common.dp.accounting.guarantee import Guarantee
from distrust.common.dp.calculator.promise import guaranteed, released
from distrust.common.dp.calculator.query import PrivacyQuery
from distrust.common.errors import BadParameter
from tests.support.calculator import answer, read

pytestmark = pytest.mark.slow


def planned_mechanism(name: str, **fields: object):  # noqa: ANN201 - one of seventeen kinds
    return PrivacyQuery(**{"clients": 1000, "epsilon": 1.0, **fields}).planned(name, "exact")


def report(name: str, **fields: object) -> dict:
    return read(answer(name, **{"clients": 1000, "epsilon": 1.0, **fields}))["exact"]


@pytest.mark.parametrize("dimension", [1, 3])
def test_one_shuffled_client_has_the_local_guarantee_that_was_asked_for(dimension: int) -> None:
    assert (
        planned_mechanism("shuffled-laplace", clients=1, delta=1e-6, dimension=dimension).privacy().promise.epsilon <= 1
    )


@pytest.mark.parametrize(("norm", "epsilon"), [("linf", 1.0), ("l2", 1.0), ("l1", 20.0), ("linf", 20.0)])
def test_grids_of_one_step_are_calibrated_for_shares_that_hardly_move(norm: str, epsilon: float) -> None:
    fields = {"delta": 1e-6, "dimension": 3, "norm": norm, "precision": 1, "epsilon": epsilon}
    result = planned_mechanism("distributed-discrete-gaussian", **fields).privacy().promise.epsilon
    assert epsilon * 0.9 < result <= epsilon


def test_shares_that_are_nearly_always_zero_promise_nothing() -> None:
    mechanism = planned_mechanism("distributed-discrete-gaussian", delta=1e-6, dimension=3)
    none = mechanism.model_copy(update={"variance": 1000 * 2e-3})
    assert none.privacy().promise.kind == "none"


@pytest.mark.parametrize("name", ["central-gaussian", "distributed-discrete-gaussian"])
def test_returning_clients_are_charged_by_the_curve_that_the_guarantee_carries(name: str) -> None:
    result = report(name, delta=1e-6, contributions=20)
    assert result["guarantee"]["epsilon"] == pytest.approx(result["profile"]["approximate"]["epsilon"], rel=1e-3)
    assert result["guarantee"]["epsilon"] < 7


def test_a_release_without_a_curve_is_never_taken_for_one_with_it() -> None:
    bare = {"kind": "approximate", "epsilon": 3.0, "delta": 1e-6, "model": "shuffle", "calibration": "exact"}
    without = Guarantee.model_validate(bare)
    curved = without.model_copy(update={"rdp": ((2.0, 1e-6), (64.0, 1e-5))})
    assert compose(((without, 1), (curved, 1))).epsilon == pytest.approx(6)


@pytest.mark.parametrize("name", ["distributed-skellam", "shuffled-binomial"])
def test_a_smaller_target_delta_than_the_releases_own_is_served_from_the_law(name: str) -> None:
    result = report(name, delta=1e-6, contributions=20, target_delta=1e-9)
    assert 5 < result["guarantee"]["epsilon"] < 20
    assert result["guarantee"]["epsilon"] == pytest.approx(result["profile"]["approximate"]["epsilon"], rel=1e-3)


@pytest.mark.parametrize("survivors", [None, 500])
def test_more_colluders_than_answers_are_refused(survivors: int | None) -> None:
    colluders = 501 if survivors else 601
    with pytest.raises(BadParameter, match="colluders"):
        PrivacyQuery(clients=1000, epsilon=1.0, dropout=0.4, survivors=survivors, colluders=colluders)


@pytest.mark.parametrize("name", ["distributed-skellam", "distributed-discrete-gaussian"])
def test_shifts_longer_than_the_noise_have_an_epsilon_too(name: str) -> None:
    """ε = 8 in the paper's constants: σ is an eighth of the range, and δ = 1e-6 takes about 32 + 8 · 4.75."""
    query = PrivacyQuery(clients=1000, epsilon=8.0, delta=1e-6)
    assert 65 < query.planned(name, "paper").privacy().promise.epsilon < 75


@pytest.mark.parametrize("delta", [5e-324, 1e-300, 1e-19, 0.0, 0.5, math.nan, math.inf])
@pytest.mark.parametrize("name", ["central-gaussian", "distributed-discrete-gaussian", "tree", "shuffled-binomial"])
def test_a_delta_below_what_the_drawn_noise_can_keep_is_refused(name: str, delta: float) -> None:
    batches = 4 if name == "tree" else None
    with pytest.raises(BadParameter, match="delta"):
        planned_mechanism(name, delta=delta, dimension=3, batches=batches)


@pytest.mark.parametrize("delta", [0.0, 1e-19, 0.5, math.nan])
def test_a_target_delta_below_it_is_refused_too(delta: float) -> None:
    with pytest.raises(BadParameter, match="target_delta"):
        report("distributed-polya", contributions=2, target_delta=delta)


def test_constants_of_a_paper_that_cannot_be_computed_leave_the_exact_ones_alone() -> None:
    result = report("shuffled-binomial", clients=100_000, epsilon=0.1, delta=1e-6)
    assert 0.08 < result["guarantee"]["epsilon"] <= 0.1


@pytest.mark.parametrize("contributions", [1, 3])
def test_more_bits_than_are_computed_with_still_have_a_guarantee(contributions: int) -> None:
    query = PrivacyQuery(clients=100_000, epsilon=0.1, delta=1e-6, contributions=contributions)
    assert 0 < guaranteed(query.planned("shuffled-binomial", "paper"), query).epsilon < 0.1


@pytest.mark.parametrize(("survivors", "colluders"), [(1001, 0), (1000, -1), (-1, 0)])
@pytest.mark.parametrize("name", ["distributed-polya", "shuffled-laplace", "shuffled-sphere", "relaxed-secagg-shuffle"])
def test_no_guarantee_counts_on_clients_that_there_are_not(name: str, survivors: int, colluders: int) -> None:
    mechanism = planned_mechanism(name, delta=1e-6 if name in {"shuffled-laplace", "shuffled-sphere"} else None)
    with pytest.raises(BadParameter, match=r"survivors|colluders"):
        mechanism.privacy(survivors, colluders)


@pytest.mark.parametrize("name", ["distributed-polya", "shuffled-laplace"])
def test_ten_thousand_contributions_are_composed_on_a_grid_that_fits(name: str) -> None:
    """Advanced composition, with pure ε = 0.01 a time, is an upper bound; the grids may not give it away."""
    delta = None if name == "distributed-polya" else 1e-9
    fields = {"clients": 1000, "epsilon": 0.01, "delta": delta, "contributions": 10_000, "target_delta": 1e-4}
    query = PrivacyQuery(**fields)
    result = guaranteed(query.planned(name, "exact"), query)
    assert result.epsilon < 0.01 * math.sqrt(2 * 10_000 * math.log(1e4)) + 10_000 * 0.01**2


@pytest.mark.parametrize("clients", [2, 3])
def test_returning_clients_of_shuffled_messages_show_every_message_and_not_their_sum(clients: int) -> None:
    """All multisets of two releases, enumerated: one client answers 0 or 1, the others 0 (noise cut at ±14)."""
    fields = {"clients": clients, "epsilon": 2.0, "delta": 0.01, "precision": 1}
    result = report("shuffled-laplace", contributions=2, target_delta=0.03, **fields)["guarantee"]["epsilon"]
    scale = planned_mechanism("shuffled-laplace", **fields).scale
    one, other = _shuffled_laws(np.exp(-np.abs(np.arange(-14, 15)) / scale), clients)
    pairs = np.multiply.outer(one, one) - math.exp(result) * np.multiply.outer(other, other)
    assert float(np.maximum(pairs, 0).sum()) <= 0.03


def _shuffled_laws(weights: np.ndarray, clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the masses of the sorted messages if one client has 1, and if it has 0.

    The truncated noise is renormalized.
    """
    still, moved = np.append(weights, 0.0) / weights.sum(), np.append(0.0, weights) / weights.sum()
    ranks = np.sort(np.indices((still.size,) * clients).reshape(clients, -1), axis=0)
    keys = np.ravel_multi_index(tuple(ranks), (still.size,) * clients)
    rest = still
    for _ in range(clients - 2):
        rest = np.multiply.outer(rest, still)
    laws = [np.bincount(keys, weights=np.multiply.outer(first, rest).ravel()) for first in (moved, still)]
    met = laws[0] + laws[1] > 1e-9
    return laws[0][met], laws[1][met]


@pytest.mark.parametrize("name", ["shuffled-laplace", "shuffled-sphere", "relaxed-secagg-shuffle", "shuffled-gaussian"])
def test_only_mechanisms_that_release_nothing_but_the_sum_are_composed_by_its_law(name: str) -> None:
    mechanism = planned_mechanism(name, clients=100, delta=None if name == "relaxed-secagg-shuffle" else 1e-6)
    assert released(mechanism, 100) is None
