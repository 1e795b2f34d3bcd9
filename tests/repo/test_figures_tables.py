"""The tables of docs/figures.md are means over the published rows, line by line."""

from collections.abc import Callable, Iterator
from functools import cache
from math import floor, log10

import numpy as np
import pytest

from lab.figures.draw import exponent
from lab.sweep import Row
from tests.published import FIGURES, rows

TEXT = FIGURES.with_suffix(".md").read_text("utf-8")
DIGITS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
MODELS = {"central": "Alg. 1 (central)", "shuffled": "Alg. 3 (shuffled)", "local": "Alg. 2 (local)"}


@cache
def table(name: str) -> dict[tuple[str, str], list[Row]]:
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows(name):
        found.setdefault((row.panel, row.series), []).append(row)
    return found


def regret(name: str, panel: str, *series: str) -> str:
    """`1,234`, or `1,234 / 987` of two series."""
    return " / ".join(f"{np.mean([row.regret for row in table(name)[panel, one]]):,.0f}" for one in series)


def line(label: str, *cells: object) -> str:
    return f"| {' | '.join(map(str, (label, *cells)))} |"


def of_epsilons(name: str, label: str, epsilons: tuple[float, ...], *series: str) -> str:
    return line(label, *(regret(name, f"ε = {epsilon:g}", *series) for epsilon in epsilons))


def mab_2() -> Iterator[str]:
    yield of_epsilons("mab-2", "DP-SE", (0.1, 0.5, 1), "DP-SE")
    for one in ("Dist-DP-SE", "Dist-RDP-SE"):
        yield of_epsilons("mab-2", f"{one}, published / exact", (0.1, 0.5, 1), one, f"{one}, exact")


def dlb_2a() -> Iterator[str]:
    for epsilon in (1, 5, 10, 20, 40):
        each = (regret("dlb-2a", f"ε = {epsilon}", one) for one in ("DPE", "CDP-DPE", "SDP-DPE", "LDP-DPE"))
        yield line(str(epsilon), *each)


def dlb_2c() -> Iterator[str]:
    for panel in dict.fromkeys(panel for panel, _ in table("dlb-2c")):
        dpe, fixed = (table("dlb-2c")[panel, series] for series in ("DPE", "DPE-FixedU"))
        wins = sum(one.regret > other.regret for one, other in zip(dpe, fixed, strict=True))
        means = (regret("dlb-2c", panel, series) for series in ("DPE", "DPE-FixedU"))
        yield line(panel.replace("paper widths", "paper's widths"), *means, wins)


def dlb_table_1() -> Iterator[str]:
    horizons = np.array([10.0**power for power in range(3, 7)])
    for series, label in {
        "DPE": "DPE",
        "CDP-DPE": "CDP-DPE",
        "LDP-DPE": "LDP-DPE",
        "SDP-DPE": "SDP-DPE, exact",
        "SDP-DPE, paper": "SDP-DPE, paper",
    }.items():
        panels = [table("dlb-table-1")[f"T = {horizon:.0f}", series] for horizon in horizons]
        means = np.array([np.mean([row.bits for row in panel]) for panel in panels])
        yield line(label, *map(power, means), f"T^{exponent(horizons, means):.2f}")


def power(value: float) -> str:
    """`1.2·10⁴`."""
    ten = floor(log10(value))
    return f"{value / 10**ten:.1f}·10{str(ten).translate(DIGITS)}"


def free_2() -> Iterator[str]:
    epsilons = (0.01, 0.1, 1, 10)
    yield of_epsilons("free-2", "without privacy", epsilons, "without privacy")
    for label, series in MODELS.items():
        yield of_epsilons("free-2", label, epsilons, series, f"{series}, exact")


def free_3() -> Iterator[str]:
    exact = ("core set, exact", "no core set, exact", "core set without noise, exact")
    for series in ("core set", "no core set", "core set without noise", *exact):
        yield of_epsilons("free-3", series, (0.03, 0.1, 1, 10), series)


@pytest.mark.parametrize("lines", [mab_2, dlb_2a, dlb_2c, dlb_table_1, free_2, free_3])
def test_a_table_is_what_the_published_rows_come_to(lines: Callable[[], Iterator[str]]) -> None:
    expected = list(lines())
    assert expected
    assert [one for one in expected if f"\n{one}" not in TEXT] == []


def test_no_run_dropped_its_best_arm_and_no_interval_missed() -> None:
    played = [row for path in sorted((FIGURES / "rows").iterdir()) for row in rows(path.stem)]
    assert sum(row.best_dropped or row.width_failures > 0 for row in played) == 0
    assert f"no interval missed its mean: {len(played):,} runs" in TEXT
    assert f"as `distrust sweep` writes them: {len(played):,} runs" in TEXT.replace("\n", " ")
