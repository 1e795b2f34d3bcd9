"""Tests `distrust privacy` without the command line."""

import math
from dataclasses import replace
from typing import Any

import pytest

from distrust.common.dp.accounting.composition import compose
from distrust.common.dp.calculator.promise import guaranteed
from distrust.common.dp.calculator.query import PrivacyQuery
from distrust.common.dp.calculator.report import Report
from distrust.common.dp.mechanisms import MECHANISMS
from distrust.common.errors import BadParameter
from distrust.lab.cli.privacy import comparison_table, report_table
from tests.support.calculator import answer, comparison, read, text

EXACT_ONLY = tuple(name for name, kind in MECHANISMS.items() if kind.calibrations == ("exact",))

ONE_COHORT = [name for name, kind in MECHANISMS.items() if not kind.takes_batches]  # `report` gives no stream


def report(name: str, **changes: Any) -> Report:
    own: dict[str, Any] = {"epsilon": None} if name == "identity" else {}
    if name in MECHANISMS and MECHANISMS[name].takes_delta == "needed":
        own |= {"delta": 1e-6, "epsilon": 0.9 if "gaussian" in name else 1.0}
    if name == "shuffled-gaussian":
        own |= {"delta": 0.01, "epsilon": 0.05}  # its theorem wants many clients and a small epsilon
    return answer(name, **{"clients": 1000, "epsilon": 1.0, **own, **changes})


def settings(name: str, **changes: Any) -> dict[str, Any]:
    return read(report(name, **changes))


@pytest.mark.parametrize("name", ONE_COHORT)
def test_both_calibrations_are_reported_and_are_json(name: str) -> None:
    shown = settings(name)
    assert ("refused" in shown["paper"]) == (name in EXACT_ONLY)
    for side in (shown["exact"], shown["paper"] if name not in EXACT_ONLY else shown["exact"]):
        assert side["parameters"]["g"] >= 1
        assert side["bits"] >= 1
        quantiles = [q for _, q in side["error"]["quantiles"]]
        assert quantiles == sorted(quantiles)
        assert (side["guarantee"]["epsilon"] is None) == (name == "identity")


@pytest.mark.parametrize("name", ONE_COHORT)
def test_people_get_a_table_with_every_number(name: str) -> None:
    shown = text(report_table(report(name)))
    for row in ("epsilon", "delta", "bits a client", "std", "p = 1e-12"):
        assert row in shown


def test_the_binomial_shows_what_exactness_saves() -> None:
    shown = settings("shuffled-binomial")
    assert (shown["paper"]["bits"], shown["exact"]["bits"]) == (10_729, 23)
    assert shown["paper"]["guarantee"]["epsilon"] < 0.1


def test_dropouts_and_colluders_fix_the_floor() -> None:
    shown = settings("distributed-polya", dropout=0.1, corrupt=0.05)
    assert (shown["least"], shown["floor"]) == (900, 850)
    assert shown["exact"]["error"]["std"] == pytest.approx(math.sqrt(2 * 1000 / 850), rel=0.01)


def test_a_short_cohort_shows_its_larger_epsilon() -> None:
    assert settings("distributed-polya", survivors=500)["paper"]["guarantee"]["epsilon"] == pytest.approx(
        2.58, abs=0.01
    )
    shown = settings("distributed-polya", survivors=600, colluders=100)
    assert shown["paper"]["guarantee"]["epsilon"] == pytest.approx(2.58, abs=0.01)


def compared() -> list[dict[str, Any]]:
    result = comparison(clients=200, epsilon=0.9, delta=1e-5, dropout=0.1, corrupt=0.1)
    rows: list[dict[str, Any]] = read(result)["mechanisms"]
    return rows


def test_side_by_side_every_mechanism_has_a_row_in_each_calibration() -> None:
    rows = compared()
    assert {(row["mechanism"], row["calibration"]) for row in rows} == {
        (name, calibration) for name in MECHANISMS for calibration in ("exact", "paper")
    }
    for row in rows:
        assert "refused" in row or row["bits"] >= 1
        if "refused" not in row and row["mechanism"] != "identity":
            assert row["error"]["quantile"] > row["error"]["std"] > 0


def test_side_by_side_trust_is_what_the_model_needs() -> None:
    trusts = {row["mechanism"]: row["trust"] for row in compared() if "trust" in row}
    assert trusts["identity"] == "all parties"
    assert trusts["central-laplace-discrete"] == "server"
    assert trusts["local-laplace-discrete"] == "no party"
    # The guarantee's own assumption: "server and aggregator do not lie together". Either may lie alone.
    assert trusts["distributed-polya"] == "clients, server or aggregator"
    assert trusts["shuffled-gaussian"] == "clients, shuffler"
    assert trusts["shuffled-binomial"] == "clients, shuffler (sees bits)"
    assert "one of the two is honest" in " ".join(comparison(clients=200, epsilon=0.9).notes)


def test_side_by_side_a_missing_delta_is_a_sentence_and_no_row() -> None:
    result = comparison(clients=200, epsilon=0.9)
    refused = {row["mechanism"]: row["refused"] for row in read(result)["mechanisms"] if "refused" in row}
    assert "delta" in refused["shuffled-binomial"]
    assert "distributed-polya" not in refused
    assert "delta" in str(comparison_table(result).caption)


def test_the_exact_law_composes_at_least_as_well_as_the_guarantee() -> None:
    query = PrivacyQuery(clients=100, epsilon=0.5, delta=1e-6)
    mechanism = query.planned("distributed-skellam", "exact")
    generic = compose(((mechanism.privacy().promise, 10),), 1e-5).epsilon
    exact = guaranteed(mechanism, replace(query, contributions=10, target_delta=1e-5)).epsilon
    assert generic is not None
    assert exact is not None
    assert exact < 0.7 * generic


def over(name: str, contributions: int, target: float, **fields: Any) -> tuple[str, float | None]:
    fields |= {"contributions": contributions, "target_delta": target}
    query = PrivacyQuery(clients=1000, epsilon=1.0, delta=1e-6, **fields)
    result = guaranteed(query.planned(name, "exact"), query)
    assert result.delta == target
    return result.kind, result.epsilon


@pytest.mark.parametrize(
    ("name", "dimension", "most"),
    [
        pytest.param("shuffled-laplace", 1, 4.0, id="by-renyi"),
        pytest.param("shuffled-gaussian", 4, 6.5, id="vectors-by-renyi"),
        pytest.param("shuffled-binomial", 4, 5.5, id="bits-have-no-renyi"),
    ],
)
def test_a_target_below_what_delta_adds_up_to_has_a_guarantee_that_holds_there(
    name: str, dimension: int, most: float
) -> None:
    """Five of (1, 1e-6) at 1e-6: by Rényi, or about five times the ε at 1e-7."""
    kind, epsilon = over(name, 5, 1e-6, dimension=dimension)
    assert kind in {"approximate", "renyi"}
    assert epsilon is not None
    assert 1 < epsilon < most
    assert (over(name, 5, 1e-4, dimension=dimension)[1] or math.inf) <= epsilon


def test_a_target_at_which_nothing_is_proven_is_refused_with_the_least_that_is_allowed() -> None:
    with pytest.raises(BadParameter, match="5 contributions need at least 5e-06") as caught:
        over("shuffled-binomial", 5, 3e-18, dimension=4)
    assert caught.value.field == "target_delta"


@pytest.mark.parametrize("target", [1e-9, 1e-4])
@pytest.mark.parametrize("name", [name for name in ONE_COHORT if name not in {"identity", "relaxed-secagg-shuffle"}])
def test_one_contribution_costs_at_a_target_no_more_than_its_law_says_there(name: str, target: float) -> None:
    for side in report(name, target_delta=target).figures.values():
        stated, own = side.promise.guarantee, side.promise.profile.approximate.epsilon
        assert stated.kind != "none"
        assert stated.delta == (target if stated.kind != "pure" else 0.0)
        assert (stated.epsilon or 0.0) <= (math.inf if own is None else own)


def test_one_contribution_at_a_target_where_nothing_is_proven_is_refused() -> None:
    """A few bits: some counts are possible for one neighbour only, with a probability above the target."""
    query = PrivacyQuery(clients=10, epsilon=8.0, delta=0.1, target_delta=1e-17)
    with pytest.raises(BadParameter, match=r"target_delta = 1e-17: one contribution needs at least 0\.1"):
        guaranteed(query.planned("shuffled-binomial", "exact"), query)
