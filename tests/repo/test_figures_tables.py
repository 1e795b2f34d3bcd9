"""Tests that the tables of docs/figures.md and of the papers' pages are means over the published rows."""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from math import floor, log10

import numpy as np
import pytest

from distrust.common.specs.contextual import WARM_UP_SHARE
from distrust.lab.figures.draw import exponent
from distrust.lab.sweep.cells import load_experiment
from distrust.lab.sweep.row import Row
from tests.support.claims import PublishedRows, published
from tests.support.published import FIGURES, PUBLISHED, rows

INDEX = FIGURES.with_suffix(".md").read_text("utf-8")
PAGES = {path.stem: path.read_text("utf-8") for path in FIGURES.glob("*.md")}
"""Text of the papers' pages by the papers' keys, `mab` for one. A function below is named after its page first."""
DIGITS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
GLB_OURS = ("LDP-OLS", "LDP-SGD")
MODELS = {
    "without privacy": "without privacy",
    "central": "Alg. 1 (central)",
    "shuffled": "Alg. 3 (shuffled)",
    "local": "Alg. 2 (local)",
}
TUNED, THEIRS = ", batched, β tuned", ", their noise"  # the ends of series of CTX
JDP, AMP, VEC, LDP = "LinUCB-JDP", "LinUCB-SDP-Amp", "LinUCB-SDP-Vec", "LinUCB-LDP"
ORDER = (("LinUCB", JDP), (JDP, VEC), (VEC, LDP), (JDP, AMP), (AMP, LDP), (VEC, "secure aggregation"))
"""Pairs whose differences CTX's page shows, the one with less regret by CTX's claim first."""
BATCHES = ((381, ""), (20, ", B = 20"))
"""Clients of a batch of ctx-bits, and the end of the series that have them."""


@cache
def table(name: str) -> dict[tuple[str, str], list[Row]]:
    result: dict[tuple[str, str], list[Row]] = {}
    for row in rows(name):
        result.setdefault((row.panel, row.series), []).append(row)
    return result


def regret(name: str, panel: str, *series: str) -> str:
    """Return `1,234`, or `1,234 / 987` of two series."""
    return " / ".join(f"{np.mean([row.regret for row in table(name)[panel, one]]):,.0f}" for one in series)


def line(label: str, *cells: object) -> str:
    return f"| {' | '.join(map(str, (label, *cells)))} |"


def of_epsilons(name: str, label: str, epsilons: tuple[float, ...], *series: str) -> str:
    return line(label, *(regret(name, f"ε = {epsilon:g}", *series) for epsilon in epsilons))


def mab_2_200() -> Iterator[str]:
    name, epsilons = "mab-2-200", (0.1, 0.5, 1)
    yield of_epsilons(name, "DP-SE, published / exact", epsilons, "DP-SE", "DP-SE, exact")
    for one in ("Dist-DP-SE", "Dist-RDP-SE"):
        label = f"{one}, published / exact / exact, 4ᵇ"
        yield of_epsilons(name, label, epsilons, one, f"{one}, exact", f"{one}, exact, 4ᵇ")


def mab_4_regret() -> Iterator[str]:
    return by_series("mab-4")


def mab_scale() -> Iterator[str]:
    for epsilon in (0.1, 0.5, 1):
        series = (f"ε = {epsilon:g}", f"ε = {epsilon:g}, Dist-DP-SE")
        cells = [cell("mab-scale", f"s = {scale}", series[0]) for scale in (1, 3, 10, 30, 100)]
        yield line(f"{epsilon:g}", *cells, cell("mab-scale", "s = 10", series[1]))


def mab_shuffle() -> Iterator[str]:
    for series in ("VB-SDP-AE", "VB-SDP-AE, forgetting", "Theorem 3", "Dist-DP-SE"):
        panels = [f"{world}, ε = {epsilon:g}" for world in ("0 or 1", "easy") for epsilon in (0.1, 0.5, 1)]
        yield line(series, *(cell("mab-shuffle", panel, series) for panel in panels))


def mab_returning() -> Iterator[str]:
    for series in dict.fromkeys(series for _, series in table("mab-returning")):
        yield line(series, *(regret("mab-returning", f"R = {times}", series) for times in (1, 4, 16, 64)))


def cell(name: str, panel: str, series: str) -> str:
    """Return `1,234 (5.6)`: regret, and the bits of one report."""
    bits = np.mean([row.payload_bits for row in table(name)[panel, series]])
    return f"{regret(name, panel, series)} ({bits:,.0f})"


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


def dlb_regret(name: str, horizons: tuple[int, ...]) -> Iterator[str]:
    """Yield lines of regrets over T, with their exponent."""
    for series in dict.fromkeys(series for _, series in table(name)):
        means = [np.mean([row.regret for row in table(name)[f"T = {horizon}", series]]) for horizon in horizons]
        slope = exponent(np.array(horizons, dtype=np.float64), np.array(means))
        yield line(series, *(f"{mean:,.0f}" for mean in means), f"T^{slope:.2f}")


def dlb_table_1_regret() -> Iterator[str]:
    return dlb_regret("dlb-table-1", (10**3, 10**4, 10**5, 10**6))


def dlb_table_2_regret() -> Iterator[str]:
    return dlb_regret("dlb-table-2", (10**4, 10**5, 10**6))


def power(value: float) -> str:
    """Return `1.2·10⁴` for 12,000."""
    ten = floor(log10(value))
    return f"{value / 10**ten:.1f}·10{str(ten).translate(DIGITS)}"


def free_2_regret(name: str = "free-2") -> Iterator[str]:
    for label, series in MODELS.items():
        yield of_epsilons(name, label, (0.01, 0.1, 1, 10), series, f"{series}, exact")


def free_4_regret() -> Iterator[str]:
    return free_2_regret("free-4")


def free_3() -> Iterator[str]:
    exact = ("core set, exact", "no core set, exact", "core set without noise, exact")
    for series in ("core set", "no core set", "core set without noise", *exact):
        repetitions = len(table("free-3")["ε = 1", series])
        cells = (regret("free-3", f"ε = {epsilon:g}", series) for epsilon in (0.03, 0.1, 1, 10))
        yield line(series, repetitions, *cells)


def by_series(name: str) -> Iterator[str]:
    """Yield a line of regrets for each series, panel by panel."""
    panels = list(dict.fromkeys(panel for panel, _ in table(name)))
    for series in dict.fromkeys(series for _, series in table(name)):
        yield line(series, *(regret(name, panel, series) for panel in panels))


def ctx_1() -> Iterator[str]:
    return by_series("ctx-1")


def ctx_1_differences() -> Iterator[str]:
    yield from ctx_2_differences("ctx-1")
    for variant in ("", ", batched"):
        yield difference("ctx-1", f"{JDP} by factorization", JDP, variant)


def ctx_1_tuned_order() -> Iterator[str]:
    return (difference("ctx-1", *pair, TUNED) for pair in ORDER)


def ctx_2() -> Iterator[str]:
    return by_series("ctx-2")


def ctx_2_differences(name: str = "ctx-2") -> Iterator[str]:
    for series, other in ORDER:
        for variant in ("", ", batched"):
            yield difference(name, series, other, variant)


def difference(name: str, series: str, other: str, variant: str) -> str:
    """Return the line of a difference, panel by panel."""
    cells = percent(name, series + variant, other + variant)
    return line(f"{series} less {other}{variant}".replace("LinUCB-", ""), *cells)


def percent(name: str, series: str, other: str) -> list[str]:
    """Return a difference, panel by panel."""
    return [shown(published(name).differs(panel, series, other)) for panel in published(name).panels]


def shown(interval: tuple[float, float]) -> str:
    """Return a difference as `-1.2 ± 0.3 %`, `undecided` where it may be 0."""
    low, high = (100 * end for end in interval)
    return f"{'undecided, ' if low <= 0 <= high else ''}{(low + high) / 2:.1f} ± {(high - low) / 2:.1f} %"


def ctx_1_falls() -> Iterator[str]:
    """Yield what a larger ε changes, from each panel to the next."""
    table = published("ctx-1")
    for series in dict.fromkeys(row.series for row in table.rows):
        yield line(series, *(shown(table.changes(series, more, less)) for less, more in pairwise(table.panels)))


def ctx_code() -> Iterator[str]:
    return by_series("ctx-code")


def ctx_code_differences() -> Iterator[str]:
    yield from (difference("ctx-code", *pair, "") for pair in ORDER if pair != ORDER[-1])
    yield difference("ctx-code", AMP, LDP, THEIRS)
    for series in (AMP, LDP):
        yield line(f"{series}, their noise less ours", *percent("ctx-code", series + THEIRS, series))


def ctx_code_levels() -> Iterator[str]:
    """Yield what the code's λ and β change of the regrets of ctx-1, and then what its noise does, panel by panel.

    Worlds are others, so that pairs of repetitions are independent.
    """
    ours = (row.model_copy(update={"series": f"{row.series}, ours"}) for row in rows("ctx-1"))
    both = PublishedRows([*rows("ctx-code"), *ours])
    for series in dict.fromkeys(series for _, series in table("ctx-code")):
        label = series.removesuffix(THEIRS)
        changed = "λ and β" if series == label else "λ, β and noise"
        cells = (shown(both.differs(panel, series, f"{label}, ours")) for panel in both.panels)
        yield line(f"{label}, {changed}", *cells)


def ctx_1_batches(name: str = "ctx-1") -> Iterator[str]:
    """Yield what larger batches change, panel by panel."""
    for series in dict.fromkeys(series.partition(", ")[0] for _, series in table(name)):
        yield line(f"{series}, batched less not", *percent(name, f"{series}, batched", series))


def ctx_2_batches() -> Iterator[str]:
    return ctx_1_batches("ctx-2")


def ctx_1_tuned() -> Iterator[str]:
    """Yield what tuned widths save of the regret with the proven ones, and the factors on β."""
    name, experiment = "ctx-1", load_experiment("ctx-1")
    for series in (one for one in experiment.series if one.label.endswith(TUNED)):
        proven = series.label.removesuffix(TUNED)
        scales = [experiment.table(panel, series)["policy"]["width_scale"] for panel in experiment.panels]
        differences = zip(scales, percent(name, series.label, f"{proven}, batched"), strict=True)
        yield line(proven, *(f"{scale:g}: {cell}" for scale, cell in differences))


def ctx_bits() -> Iterator[str]:
    for batch, variant in BATCHES:
        for one in dict.fromkeys(series.partition(", ")[0] for _, series in table("ctx-bits")):
            cells = [cell("ctx-bits", f"ε = {epsilon:g}", one + variant) for epsilon in (0.2, 1, 10)]
            yield line(one, batch, *cells)


def ctx_bits_differences() -> Iterator[str]:
    """Yield what secure aggregation loses more than the tree, and one of its noises more than the other."""
    tree, gauss, skellam = "central tree", "secure aggregation (discrete Gaussian)", "secure aggregation (Skellam)"
    for batch, variant in BATCHES:
        for one, other in ((gauss, tree), (skellam, tree), (skellam, gauss)):
            yield line(f"{one} less {other}", batch, *percent("ctx-bits", one + variant, other + variant))


def models() -> Iterator[str]:
    """Yield the regrets and the bits of each policy under each model."""
    for series in dict.fromkeys(series for _, series in table("models")):
        model, _, policy = series.partition(", ")
        cells = [cell("models", f"ε = {epsilon:g}", series) for epsilon in (0.1, 1, 10)]
        yield line(policy, model, *cells)


def glb_1() -> Iterator[str]:
    return by_series("glb-1")


def glb_1_factors() -> Iterator[str]:
    """Yield the factors by which a baseline has more regret than LDP-OLS and LDP-SGD, panel by panel."""
    panels = list(dict.fromkeys(panel for panel, _ in table("glb-1")))
    for baseline in ("LDP-UCB", "LDP-GLOC"):
        cells = []
        for panel in panels:
            mean = {one: np.mean([row.regret for row in table("glb-1")[panel, one]]) for one in (*GLB_OURS, baseline)}
            factors = [mean[baseline] / mean[one] for one in GLB_OURS]
            cells.append(", ".join(f"{factor:.2f}" if max(factors) < 1.2 else f"{factor:.1f}" for factor in factors))
        yield line(f"below {baseline}", *cells)


def glb_1_gaps(name: str = "glb-1") -> Iterator[str]:
    yield from (gap(name, more, less) for more in ("LDP-UCB", "LDP-GLOC") for less in GLB_OURS)
    yield gap(name, "LDP-SGD", "LDP-OLS")


def glb_1_clips() -> Iterator[str]:
    return (gap("glb-1", "LDP-SGD, clipped", other) for other in (*GLB_OURS, "LDP-UCB", "LDP-GLOC"))


def glb_1_40() -> Iterator[str]:
    return by_series("glb-1-40")


def glb_1_40_gaps() -> Iterator[str]:
    return glb_1_gaps("glb-1-40")


def gap(name: str, more: str, less: str) -> str:
    """Return the line of a difference of two series, panel by panel: `1,234 ± 56`, `undecided` where it may be 0."""
    cells = []
    for panel in published(name).panels:
        low, high = (end * published(name).mean(panel, less) for end in published(name).differs(panel, more, less))
        cells.append(f"{'undecided, ' if low <= 0 <= high else ''}{(low + high) / 2:,.0f} ± {(high - low) / 2:,.0f}")
    return line(f"{more} less {less}", *cells)


def glb_1_numbers() -> Iterator[str]:
    """Yield the tuned numbers of Figure 5.1: a policy and number each, panel by panel, a dash where it has none.

    A policy with a margin has a warm-up, whose share is the default where the experiment says nothing.
    """
    experiment = load_experiment("glb-1")
    for series in experiment.series:
        tables = [experiment.table(panel, series)["policy"] for panel in experiment.panels]
        tables = [{"warm_up_share": 1 / WARM_UP_SHARE} | table if "margin" in table else table for table in tables]
        for key in ("step", "margin", "warm_up_share", "clip"):
            if any(key in table for table in tables):
                yield line(
                    f"{series.label}, `{key}`", *(f"{table[key]:g}" if key in table else "–" for table in tables)
                )


def glb_f1() -> Iterator[str]:
    return by_series("glb-f1")


def glb_f1_gaps() -> Iterator[str]:
    yield gap("glb-f1", "LDP-GLOC", "LDP-SGD")


MAB = (mab_2_200, mab_4_regret, mab_scale, mab_shuffle, mab_returning)
CTX_1 = (ctx_1, ctx_1_differences, ctx_1_batches, ctx_1_falls, ctx_1_tuned, ctx_1_tuned_order)
CTX_CODE = (ctx_code, ctx_code_differences, ctx_code_levels)
CTX_2 = (ctx_2, ctx_2_differences, ctx_2_batches, ctx_bits, ctx_bits_differences)
GLB = (glb_1, glb_1_factors, glb_1_gaps, glb_1_numbers, glb_1_clips, glb_1_40, glb_1_40_gaps, glb_f1, glb_f1_gaps)
FREE = (free_2_regret, free_3, free_4_regret)
DLB = (dlb_2a, dlb_2c, dlb_table_1, dlb_table_1_regret, dlb_table_2_regret)


@pytest.mark.parametrize("lines", [*MAB, *DLB, *FREE, *CTX_1, *CTX_CODE, *CTX_2, *GLB, models])
def test_a_table_is_what_the_published_rows_come_to(lines: Callable[[], Iterator[str]]) -> None:
    expected, page = list(lines()), PAGES[lines.__name__.partition("_")[0]]
    assert expected
    assert [one for one in expected if f"\n{one}" not in page] == []


def test_the_page_of_prefix_sums_states_the_regrets_of_its_two_mechanisms() -> None:
    page = " ".join((FIGURES.parent / "concepts/privacy/prefix-sums.md").read_text("utf-8").split())
    tree, factors, *batched = (
        regret("ctx-1", "ε = 1", series + variant)
        for variant in ("", ", batched")
        for series in ("LinUCB-JDP", "LinUCB-JDP by factorization")
    )
    assert f"the tree has a regret of {tree} and the factorization one of {factors}." in page
    assert f"In batches of 141 they have {' and '.join(batched)}" in page


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_index_has_the_repetitions_and_the_time_of_the_rows(name: str) -> None:
    counts = {len(pair) for pair in table(name).values()}
    fewer = f" ({min(counts)} of one series)" if len(counts) > 1 else ""
    minutes = sum(row.seconds for row in rows(name)) / 60
    (result,) = (one for one in INDEX.splitlines() if one.startswith(f"| `{name}` |"))
    assert result.endswith(f" | {max(counts)}{fewer} | {minutes:.0f} |")


def test_no_run_dropped_its_best_arm_and_as_many_intervals_missed_as_the_text_says() -> None:
    played = [row for name in PUBLISHED for row in rows(name)]
    assert not any(row.best_dropped for row in played)
    faulty = [row for row in played if row.width_failures]
    assert {(row.calibration, row.failure) for row in faulty} == {("exact", 0.1)}
    assert len(faulty) == 6
    assert "in 6 of" in INDEX
    assert "All six are of runs with exact widths" in INDEX
    missed, widths = sum(row.width_failures for row in played), sum(row.widths for row in played)
    sentence = f"No run dropped its best arm; of {widths:,} intervals {missed} missed its mean"
    assert sentence in INDEX.replace("\n", " ")
    assert f"as `distrust sweep` writes them: {len(played):,} runs" in INDEX.replace("\n", " ")
