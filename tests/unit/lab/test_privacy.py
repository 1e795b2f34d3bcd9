"""`distrust privacy` without the command line."""

import io
import json
import math
from typing import Any

import pytest
from rich.console import Console

from common.errors import BadParameter
from common.mechanisms.planning import DELTAS, KINDS
from lab import privacy

ASKED: dict[str, Any] = {
    "clients": 1000,
    "epsilon": 1.0,
    "delta": None,
    "dropout": 0.0,
    "corrupt": 0.0,
    "survivors": None,
    "colluders": 0,
}


def asked(name: str, **changes: Any) -> dict[str, Any]:
    own: dict[str, Any] = {"epsilon": None} if name == "identity" else {}
    if DELTAS.get(name) == "needed":  # type: ignore[call-overload]
        own |= {"delta": 1e-6, "epsilon": 0.9 if "gaussian" in name else 1.0}
    return privacy.report(name, **{**ASKED, **own, **changes})


@pytest.mark.parametrize("name", KINDS)
def test_both_calibrations_are_reported_and_are_json(name: str) -> None:
    shown = asked(name)
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown
    for side in (shown["exact"], shown["paper"]):
        assert side["parameters"]["g"] >= 1
        assert side["bits"] >= 1
        quantiles = [q for _, q in side["error"]["quantiles"]]
        assert quantiles == sorted(quantiles)
        assert (side["guarantee"]["epsilon"] is None) == (name == "identity")


@pytest.mark.parametrize("name", KINDS)
def test_people_get_a_table_with_every_number(name: str) -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(privacy.table(asked(name)))
    text = console.export_text()
    for row in ("epsilon", "delta", "bits a client", "std", "p = 1e-12"):
        assert row in text


def test_the_binomial_shows_what_exactness_saves() -> None:
    shown = asked("shuffled-binomial")
    assert (shown["paper"]["bits"], shown["exact"]["bits"]) == (10_729, 23)
    assert shown["paper"]["guarantee"]["epsilon"] < 0.1


def test_dropouts_and_colluders_fix_the_floor() -> None:
    shown = asked("distributed-polya", dropout=0.1, corrupt=0.05)
    assert (shown["least"], shown["floor"]) == (900, 850)
    assert shown["exact"]["error"]["std"] == pytest.approx(math.sqrt(2 * 1000 / 850), rel=0.01)


def test_a_short_cohort_shows_its_larger_epsilon() -> None:
    assert asked("distributed-polya", survivors=500)["paper"]["guarantee"]["epsilon"] == pytest.approx(2.58, abs=0.01)
    shown = asked("distributed-polya", survivors=600, colluders=100)
    assert shown["paper"]["guarantee"]["epsilon"] == pytest.approx(2.58, abs=0.01)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"epsilon": 0.0}, "mechanism.epsilon"),
        ({"epsilon": math.nan}, "mechanism.epsilon"),
        ({"delta": 0.1}, "mechanism.delta"),
        ({"clients": 0}, "clients"),
        ({"dropout": 0.5}, "dropout"),
        ({"corrupt": -0.1}, "corrupt"),
        ({"survivors": 1001}, "survivors"),
        ({"colluders": -1}, "colluders"),
    ],
)
def test_bad_input_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(BadParameter) as caught:
        asked("distributed-polya", **changes)
    assert caught.value.field == field


def test_an_unknown_mechanism_is_told_the_known_ones() -> None:
    with pytest.raises(BadParameter, match="distributed-polya"):
        asked("laplace")
