"""Tests that the intervals that carry the claims of the pages of MAB, FREE, DLB and all models are those of the rows.

A line of a page names two series of a figure, as the rows have them, and has a cell for each panel: the 95 % interval
of their paired difference. Sentences have the numbers that no table has.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import t

from distrust.lab.figures.draw import exponent
from distrust.lab.figures.drawing import panel_number, uniform_play
from distrust.lab.sweep.cells import read_experiment
from tests.support.claims import Floats, PublishedRows, published, standard_error
from tests.support.published import FIGURES

PAGES = {path.stem: path.read_text("utf-8") for path in (FIGURES.with_suffix(".md"), *FIGURES.glob("*.md"))}
"""Text of the papers' pages and of their index, docs/figures.md. A function below is named after its page first."""
CODE, EXACT, FOURS = "", ", exact", ", exact, 4ᵇ"
CENTRAL, SHUFFLED, LOCAL, PUBLIC = "Alg. 1 (central)", "Alg. 3 (shuffled)", "Alg. 2 (local)", "without privacy"
Pairs = Iterable[tuple[str, str]]


def line(label: str, *cells: str) -> str:
    return f"| {' | '.join((label, *cells))} |"


def differences(name: str, pairs: Pairs) -> Iterator[str]:
    """Yield a line for each pair of series, panel by panel, in the order of the figure's axis where it has one."""
    experiment, rows = read_experiment(name), published(name)
    panels = experiment.panels
    if experiment.draw["kind"] == "by-panel":
        key = experiment.draw.get("key", "mechanism.epsilon")
        panels = sorted(panels, key=lambda panel: panel_number(experiment, panel, key))
    for series, other in pairs:
        yield line(f"{series} less {other}", *(rows.shown_difference(one.label, series, other) for one in panels))


def mab_1() -> Iterator[str]:
    pairs = (("Dist-DP-SE", "DP-SE"), ("Dist-RDP-SE", "DP-SE"), ("Dist-RDP-SE", "Dist-DP-SE"))
    return differences("mab-1", pairs)


def three_variants(name: str, *, renyi: bool = False) -> Iterator[str]:
    """Yield the differences of a figure with the code's constants, exact ones, and exact ones with batches of 4ᵇ."""
    for variant, central in ((CODE, CODE), (EXACT, EXACT), (FOURS, EXACT)):
        pairs = [("Dist-DP-SE" + variant, "DP-SE" + central), ("Dist-RDP-SE" + variant, "Dist-DP-SE" + variant)]
        if renyi:
            pairs.insert(1, ("Dist-RDP-SE" + variant, "DP-SE" + central))
        yield from differences(name, pairs)


def mab_2() -> Iterator[str]:
    return three_variants("mab-2")


def mab_2_200() -> Iterator[str]:
    yield from three_variants("mab-2-200")
    for series in ("Dist-DP-SE", "Dist-RDP-SE"):
        yield from differences("mab-2-200", [(series + FOURS, series), (series + EXACT, series + FOURS)])


def mab_3() -> Iterator[str]:
    return three_variants("mab-3")


def mab_4() -> Iterator[str]:
    for variant in (CODE, EXACT):
        pairs = (
            ("CDP-SE", "Dist-DP-SE"),
            ("LDP-SE", "Dist-DP-SE"),
            ("Dist-RDP-SE", "Dist-DP-SE"),
            ("Dist-CDP-SE", "Dist-RDP-SE"),
        )
        yield from differences("mab-4", [(one + variant, other + variant) for one, other in pairs])


def mab_5() -> Iterator[str]:
    return three_variants("mab-5", renyi=True)


def mab_scale() -> Iterator[str]:
    return differences("mab-scale", [(f"ε = {one}", f"ε = {one}, Dist-DP-SE") for one in ("0.1", "0.5", "1")])


def mab_shuffle() -> Iterator[str]:
    pairs = (
        ("Theorem 3", "Dist-DP-SE"),
        ("VB-SDP-AE", "Dist-DP-SE"),
        ("VB-SDP-AE, forgetting", "Dist-DP-SE"),
        ("VB-SDP-AE", "Theorem 3"),
    )
    return differences("mab-shuffle", pairs)


def mab_returning() -> Iterator[str]:
    pairs = (
        ("Dist-RDP-SE, advanced composition", "Dist-RDP-SE"),
        ("Dist-DP-SE", "Dist-RDP-SE"),
        ("Dist-DP-SE, composed at δ", "Dist-DP-SE"),
        ("Dist-DP-SE", "Dist-RDP-SE, advanced composition"),
    )
    return differences("mab-returning", pairs)


def free_2(name: str = "free-2") -> Iterator[str]:
    for variant in (CODE, EXACT):
        pairs = ((CENTRAL, PUBLIC), (SHUFFLED, PUBLIC), (SHUFFLED, CENTRAL), (LOCAL, SHUFFLED))
        yield from differences(name, [(one + variant, other + variant) for one, other in pairs])


def free_3() -> Iterator[str]:
    core, everything, noiseless = "core set", "no core set", "core set without noise"
    for variant in (CODE, EXACT):
        pairs = ((core, noiseless), (everything, core), (noiseless, everything))
        yield from differences("free-3", [(one + variant, other + variant) for one, other in pairs])


def free_4() -> Iterator[str]:
    return free_2("free-4")


def dlb_2a() -> Iterator[str]:
    return differences("dlb-2a", [("CDP-DPE", "DPE"), ("SDP-DPE", "CDP-DPE"), ("LDP-DPE", "SDP-DPE")])


def dlb_2b() -> Iterator[str]:
    yield from differences("dlb-2b", [("CDP-DPE", "DPE"), ("SDP-DPE", "CDP-DPE"), ("LDP-DPE", "SDP-DPE")])
    yield from differences("dlb-2b", [("DPE, paper", "DPE"), ("SDP-DPE, paper", "LDP-DPE")])


def dlb_2c() -> Iterator[str]:
    return differences("dlb-2c", [("DPE-FixedU", "DPE")])


def dlb_table_1() -> Iterator[str]:
    return differences("dlb-table-1", [("CDP-DPE", "DPE"), ("SDP-DPE", "CDP-DPE"), ("LDP-DPE", "SDP-DPE")])


def dlb_table_2() -> Iterator[str]:
    return differences("dlb-table-2", [("CDP-PE", "PE"), ("SDP-PE", "CDP-PE"), ("LDP-PE", "SDP-PE")])


def models() -> Iterator[str]:
    """Yield the differences of neighbouring models under one policy, then those of policies under one model."""
    order = ("no privacy", "central", "distributed", "shuffle", "local")
    policies = ("elimination", "VB-SDP-AE", "DP-SE", "AdaP-UCB", "Thompson")
    for policy in policies:
        pairs = ((f"{more}, {policy}", f"{less}, {policy}") for less, more in pairwise(order))
        yield from differences("models", pairs)
    yield from differences("models", [("central, DP-UCB", "no privacy, DP-UCB")])
    for model in order:
        others = (*policies[:-1], "DP-UCB") if model in {"no privacy", "central"} else policies[:-1]
        yield from differences("models", [(f"{model}, {other}", f"{model}, Thompson") for other in others])


def growth(name: str) -> Iterator[str]:
    """Yield a line for each series: the exponents of bits and of regret of each world, their mean and its interval."""
    rows = published(name)
    for series in dict.fromkeys(row.series for row in rows.rows):
        horizons = np.array([rows.of(panel, series, "horizon")[0] for panel in rows.panels])
        cells = []
        for column in ("bits", "regret"):
            worlds = np.stack([rows.of(panel, series, column) for panel in rows.panels], axis=1)
            cells.append("T^({} ± {})".format(*interval([exponent(horizons, world) for world in worlds])))
        yield line(series, *cells)


def interval(values: list[float] | Floats, digits: int = 2) -> tuple[str, str]:
    """Return a mean and half its 95 % interval (Student's t)."""
    each = np.array(values)
    half = t.ppf(0.975, each.size - 1) * each.std(ddof=1) / np.sqrt(each.size)
    return f"{each.mean():,.{digits}f}", f"{half:,.{digits}f}"


def dlb_table_1_growth() -> Iterator[str]:
    return growth("dlb-table-1")


def dlb_table_2_growth() -> Iterator[str]:
    return growth("dlb-table-2")


MAB = (mab_1, mab_2, mab_2_200, mab_3, mab_4, mab_5, mab_scale, mab_shuffle, mab_returning)
DLB = (dlb_2a, dlb_2b, dlb_2c, dlb_table_1, dlb_table_1_growth, dlb_table_2, dlb_table_2_growth)


@pytest.mark.parametrize("lines", [*MAB, free_2, free_3, free_4, *DLB, models])
def test_a_page_has_the_intervals_that_the_published_rows_come_to(lines: Callable[[], Iterator[str]]) -> None:
    page = PAGES[lines.__name__.partition("_")[0]]
    assert [one for one in lines() if f"\n{one}" not in page] == []


def mab_sentences() -> Iterator[str]:
    mab = published("mab-2")
    times = read_experiment("mab-2").places(10**6)
    early = int(np.searchsorted(times, 10**5))
    gaps = []
    for place in (early, -1):
        each = [_curves(mab, "ε = 0.1", series)[:, place] / times[place] for series in ("Dist-DP-SE", "DP-SE")]
        gaps.append(" ± ".join(interval(each[0] - each[1], 3)))
    yield f"is {gaps[0]} at t = 10⁵ and {gaps[1]} at T = 10⁶"
    mab = published("mab-1")
    changed = mab.mean("MSLR, ε = 1", "DP-SE") / mab.mean("MSLR, ε = 10", "DP-SE") - 1
    yield f"its regret changes by {100 * abs(changed):.0f} % from ε = 1 to 10"
    mab = published("mab-scale")
    falls = []
    for series in ("ε = 0.1", "ε = 1"):
        fine, coarse = (mab.regret(panel, series) for panel in ("s = 100", "s = 10"))
        falls.append(" ± ".join(interval(100 * (coarse - fine) / coarse.mean(), 1)))
    yield f"regret falls by {falls[0]} % at ε = 0.1 and by {falls[1]} % at ε = 1 (95 % intervals, paired by worlds)"
    (local,) = {f"{published('mab-4').mean('ε = 0.1', 'LDP-SE' + variant):,.0f}" for variant in (CODE, EXACT)}
    uniform = uniform_play(read_experiment("mab-4"), published("mab-4").rows)["ε = 0.1"]
    yield f"both rows have {local}, and the line of uniform play lies at {uniform:,.0f}"
    rows = published("mab-shuffle").rows
    missed, runs = sum(row.width_failures for row in rows), sum(row.width_failures > 0 for row in rows)
    widths = sum(row.widths for row in rows)
    yield f"{missed} of {widths:,} intervals missed their mean, in {runs} of {len(rows)} runs"


def _curves(rows: PublishedRows, panel: str, series: str) -> Floats:
    """Return the curves of a pair, shape (repetitions, points)."""
    return np.array([row.curve for row in rows.rows if (row.panel, row.series) == (panel, series)])


def figures_sentences() -> Iterator[str]:
    few, many = (published(name).regret("ε = 1", "DP-SE") for name in ("mab-2", "mab-2-200"))
    yield f"{few.mean():,.0f} ± {standard_error(few):,.0f} (mean and its standard error) on the 20 instances of `mab-2`"
    yield f"{many.mean():,.0f} ± {standard_error(many):,.0f} on 200"
    rows = published("mab-2-200")
    spreads = [
        100 * regret.std(ddof=1) / regret.mean()
        for regret in (rows.regret(*pair) for pair in dict.fromkeys((row.panel, row.series) for row in rows.rows))
    ]
    own = 100 * many.std(ddof=1) / many.mean()
    yield f"{min(spreads):.0f} to {max(spreads):.0f} % of the mean, {own:.0f} % for DP-SE at ε = 1"


def dlb_sentences() -> Iterator[str]:
    dlb = published("dlb-2b")
    (panel,) = dlb.panels
    each = {series: dlb.mean(panel, series) for series in ("DPE", "DPE, paper", "CDP-DPE", "SDP-DPE", "LDP-DPE")}
    rounds = {series: mean / 10**6 for series, mean in each.items()}
    yield (
        f"{rounds['CDP-DPE']:.4f} and {rounds['SDP-DPE']:.4f} a round at T, against {rounds['DPE']:.4f} for DPE "
        f"({rounds['DPE, paper']:.4f} with the paper's widths) and {rounds['LDP-DPE']:.2f} for LDP-DPE"
    )
    yield f"regret {dlb.mean(panel, 'SDP-DPE, paper'):,.0f}, above LDP-DPE's {each['LDP-DPE']:,.0f}"
    yield f"instead of {each['DPE']:,.0f} (`policy.noise = 1.0`; {each['DPE, paper']:,.0f} with the paper's)"
    yield f"instead of {each['CDP-DPE']:,.0f}."
    sampled = published("dlb-2c")
    apart = [
        abs(sampled.bits(panel, "DPE-FixedU").mean() / sampled.bits(panel, "DPE").mean() - 1)
        for panel in sampled.panels
    ]
    yield "both send as many bits ({:.1f}, {:.1f} and {:.1f} % apart)".format(*(100 * one for one in apart))
    done = int((sampled.regret(sampled.panels[1], "DPE-FixedU") < 20).sum())
    yield f"with a regret below 20 ({done} of the 20 worlds)"
    most = max(row.clients for row in sampled.rows if row.series == "DPE-FixedU")
    yield f"{most:,} at most in DPE-FixedU's"
    table = published("dlb-table-1")
    ratio = [
        table.mean(f"T = {horizon}", "CDP-DPE") / table.mean(f"T = {horizon}", "DPE") for horizon in (10**6, 10**4)
    ]
    yield f"CDP-DPE's regret is {ratio[0]:.1f} times DPE's there, after {ratio[1]:.1f} times at 10⁴"
    sent = published("dlb-table-2")
    bits = [sent.bits("T = 1000000", series).mean() / 1e6 for series in ("PE", "CDP-PE", "LDP-PE", "SDP-PE")]
    paper = sent.bits("T = 1000000", "SDP-PE, paper").mean() / 1e6
    yield (
        "PE {:.1f} Mbit (a fine grid, no noise), CDP-PE {:.1f}, LDP-PE {:.1f}, SDP-PE {:.1f}, and SDP-PE with "
        "Algorithm 4's constants {:,.0f}"
    ).format(*bits, paper)


def models_sentences() -> Iterator[str]:
    rows = published("models")
    policies = ("elimination", "VB-SDP-AE", "DP-SE", "AdaP-UCB", "Thompson")
    for panel in rows.panels:
        bits = {
            model: np.array([rows.of(panel, f"{model}, {policy}", "payload_bits").mean() for policy in policies])
            for model in ("shuffle", "distributed")
        }
        ratios = bits["shuffle"] / bits["distributed"]
        yield f"{ratios.min():.1f} to {ratios.max():.1f} times at {panel}"


@pytest.mark.parametrize("sentences", [mab_sentences, figures_sentences, dlb_sentences, models_sentences])
def test_a_page_has_the_numbers_of_its_sentences(sentences: Callable[[], Iterator[str]]) -> None:
    page = " ".join(PAGES[sentences.__name__.partition("_")[0]].split())
    assert [sentence for sentence in sentences() if sentence not in page] == []
