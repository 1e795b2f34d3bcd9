"""Tests what `distrust privacy` shows, labels and refuses for vectors, norms, ranges and kinds of noise."""

import json
import math
from typing import Any

import pytest
from typer.testing import CliRunner

from distrust.common.dp.accounting.profile import PROFILE_ORDERS
from distrust.common.dp.calculator.query import PrivacyQuery
from distrust.common.dp.mechanisms import MECHANISMS
from distrust.lab.__main__ import app
from distrust.lab.cli.privacy import report_table
from tests.support.calculator import answer, comparison, read, text

COHORT: dict[str, Any] = {"clients": 200, "epsilon": 0.9}


def report(name: str, **fields: Any) -> dict[str, Any]:
    return read(answer(name, **{**COHORT, **fields}))


def printed(name: str, **fields: Any) -> str:
    return text(report_table(answer(name, **{**COHORT, **fields})))


def compared(norm: str) -> dict[str, dict[str, Any]]:
    """Return the row of every mechanism's exact calibration, for vectors of three coordinates."""
    fields: dict[str, Any] = {"dimension": 3, "norm": norm, "low": -2.0, "high": 2.0}
    shown = read(comparison(clients=60, epsilon=0.9, delta=1e-5, batches=4, **fields))
    return {row["mechanism"]: row for row in shown["mechanisms"] if row["calibration"] == "exact"}


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
@pytest.mark.few(1)
def test_every_mechanism_answers_for_a_vector_or_says_why_not(norm: str) -> None:
    rows = compared(norm)
    assert sorted(rows) == sorted(MECHANISMS)
    for name, row in rows.items():
        if "refused" in row:
            assert " = " in row["refused"], name
            continue
        assert {"pure", "approximate", "rdp", "rdp_how", "delta", "notes"} <= row["profile"].keys(), name
        assert [order for order, _ in row["profile"]["rdp"]] == list(PROFILE_ORDERS), name
        known = name not in {"local-sphere", "shuffled-sphere", "relaxed-secagg-shuffle"}  # for all data; as cut off
        assert row["error"]["quantile_how"] == ("exact" if known else "bound"), name


def test_a_guarantee_without_renyi_orders_of_its_own_is_printed_with_the_profile_s() -> None:
    shown = report("distributed-polya")["exact"]
    assert shown["guarantee"]["kind"] == "pure"
    assert shown["guarantee"]["rdp"] == shown["profile"]["rdp"]
    own = report("distributed-skellam")["exact"]
    assert dict(own["guarantee"]["rdp"])[5.0] > 0


def test_the_box_pays_for_every_coordinate_and_a_ball_for_less() -> None:
    std = {
        norm: report("central-laplace", dimension=25, norm=norm)["exact"]["error"]["std"]
        for norm in ("l1", "l2", "linf")
    }
    assert 4 * std["l1"] < std["l2"] < std["linf"] / 4
    assert std["linf"] == pytest.approx(25 * report("central-laplace")["exact"]["error"]["std"], rel=0.01)


def test_only_the_width_of_the_range_matters_and_errors_are_in_its_units() -> None:
    near, far = (report("distributed-polya", low=low, high=low + 4.0)["exact"] for low in (0.0, -1e3))
    assert near == far
    assert near["error"]["std"] == pytest.approx(4 * report("distributed-polya")["exact"]["error"]["std"], rel=1e-9)


def test_a_vector_s_errors_are_said_to_be_of_one_coordinate() -> None:
    shown = report("local-sphere", dimension=5, norm="l2")
    assert shown["exact"]["error"]["of"] == "one coordinate of the sum"
    assert shown["exact"]["error"]["quantiles_how"] == "bound"
    table = printed("local-sphere", dimension=5, norm="l2")
    assert "D = 5, l2" in table
    assert "error of one coordinate of the sum: std" in table
    assert "≤ " in table.split("p = 0.001")[1].splitlines()[0]


def test_the_table_tells_infinite_from_unknown() -> None:
    skellam = printed("distributed-skellam", dimension=4, norm="l2")
    assert "∞" in skellam.split("pure epsilon")[1].splitlines()[0]
    assert "∞" in printed("shuffled-binomial", delta=1e-5).split("RDP(2)")[1].splitlines()[0]


def test_continuous_noise_is_shown_with_its_warning_once() -> None:
    fields = {"delta": 1e-5, "noise": "continuous"}
    shown = report("central-gaussian", **fields)
    assert printed("central-gaussian", **fields).replace("\n", " ").count("UNSAFE") == 1
    assert shown["exact"]["guarantee"]["epsilon"] == pytest.approx(0.9)


def test_the_precision_of_the_theorem_and_a_grid_can_be_chosen() -> None:
    paper = report("distributed-skellam", scale=4.0)["paper"]["parameters"]
    assert paper["g"] == math.ceil(4 * 0.9 * math.sqrt(200))
    assert report("distributed-polya", precision=7)["exact"]["parameters"]["g"] == 7


def test_letters_of_the_theorems_are_there() -> None:
    letters = {name: report(name, **words)["exact"]["parameters"].keys() for name, words in WORDS.items()}
    assert {"b", "p"} <= letters["shuffled-binomial"]
    assert {"tau", "variance"} <= letters["distributed-skellam"]
    assert {"W", "d", "q", "share"} <= letters["relaxed-secagg-shuffle"]
    assert {"variance", "depth"} <= letters["tree"]
    assert "local epsilon" in letters["shuffled-laplace"]
    assert {"g", "m", "tau", "radius"} == letters["local-sphere"]
    assert {"g", "m", "tau", "radius", "local epsilon"} == letters["shuffled-sphere"]


WORDS: dict[str, dict[str, Any]] = {
    "shuffled-binomial": {"delta": 1e-5},
    "distributed-skellam": {},
    "relaxed-secagg-shuffle": {},
    "tree": {"delta": 1e-5, "batches": 4},
    "shuffled-laplace": {"delta": 1e-5},
    "local-sphere": {},
    "shuffled-sphere": {"delta": 1e-5},
}


def test_several_contributions_add_up_in_every_kind_of_privacy() -> None:
    one, many = (
        report("distributed-polya", epsilon=0.2, contributions=n, target_delta=1e-5)["exact"]["profile"]
        for n in (1, 30)
    )
    assert many["pure"]["epsilon"] == pytest.approx(30 * one["pure"]["epsilon"])
    assert [e for _, e in many["rdp"]] == pytest.approx([30 * e for _, e in one["rdp"]])
    assert many["approximate"]["epsilon"] < 0.8 * many["pure"]["epsilon"]
    larger = report("distributed-polya", epsilon=0.2, contributions=30, target_delta=1e-4)["exact"]["guarantee"]
    assert larger["epsilon"] < 0.7 * many["pure"]["epsilon"]
    assert many["approximate"]["how"] == "bound"


def test_the_profile_is_at_the_delta_that_was_asked_for() -> None:
    assert report("shuffled-binomial", delta=1e-4)["exact"]["profile"]["delta"] == 1e-4
    assert report("shuffled-binomial", delta=1e-4, target_delta=1e-3)["exact"]["profile"]["delta"] == 1e-3
    assert report("distributed-polya")["exact"]["profile"]["delta"] == 1e-6


def test_the_command_takes_all_of_it() -> None:
    words = "distributed-skellam --n 100 --epsilon 0.5 --dimension 4 --norm l2 --low -1 --high 1 --scale 5 --json -"
    shown = json.loads(CliRunner().invoke(app, ["privacy", *words.split()]).stdout)
    assert (shown["dimension"], shown["norm"], shown["low"], shown["high"]) == (4, "l2", -1.0, 1.0)


def test_a_floor_is_what_is_left_and_at_least_one() -> None:
    assert PrivacyQuery(clients=10, epsilon=1.0, dropout=0.4, corrupt=0.4).min_honest == 2
    assert PrivacyQuery(clients=1, epsilon=1.0, dropout=0.4, corrupt=0.4).min_honest == 1
