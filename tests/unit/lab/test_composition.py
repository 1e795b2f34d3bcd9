"""Tests MAB Appendix I: Rényi composition needs less noise than advanced composition, by its factor."""

import math
from pathlib import Path

import pytest
from dp_accounting import dp_event
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from typer.testing import CliRunner

from distrust.common.errors import BadParameter
from distrust.lab.__main__ import app
from distrust.lab.figures.composition import (
    BATCHES,
    EXACT,
    PAPER,
    RENYI,
    advanced_sigma,
    composition_curves,
    composition_figure,
    draw_composition,
    least_sigma,
)

FOUND = composition_curves(0.5, 1e-6)


def test_exact_is_below_renyi_is_below_the_paper() -> None:
    for exact, rdp, paper in list(zip(FOUND.exact, FOUND.rdp, FOUND.paper, strict=True))[1:]:
        assert exact < rdp < paper


def test_the_gain_grows_like_the_root_of_the_logarithm() -> None:
    """Equations 14 and 15: σ² differs by a factor of log(B/δ), up to constants."""
    gains = [(paper / rdp) ** 2 for paper, rdp in zip(FOUND.paper, FOUND.rdp, strict=True)]
    ratio = [gain / math.log(count / 1e-6) for gain, count in zip(gains, BATCHES, strict=True)]
    assert gains[-1] > gains[1] > 10
    assert max(ratio[1:]) / min(ratio[1:]) < 1.2


def test_renyi_noise_grows_with_the_root_of_the_batches() -> None:
    assert FOUND.rdp[-1] / FOUND.rdp[0] == pytest.approx(math.sqrt(BATCHES[-1]), rel=1e-3)


@pytest.mark.parametrize("count", [1, 16, 256])
def test_the_exact_noise_is_what_dp_accounting_composes_to(count: int) -> None:
    oracle = PLDAccountant(value_discretization_interval=1e-4)
    oracle.compose(dp_event.GaussianDpEvent(math.sqrt(count) * least_sigma(0.5, 1e-6)), count)
    assert oracle.get_epsilon(1e-6) == pytest.approx(0.5, rel=1e-2)


def test_one_batch_is_not_composed() -> None:
    assert advanced_sigma(0.5, 1e-6, 1) == pytest.approx(math.sqrt(2 * math.log(1.25e6)) / 0.5)


def test_the_figure_is_written_as_png_svg_and_pdf(tmp_path: Path) -> None:
    png, svg, pdf = draw_composition(FOUND, tmp_path / "returning")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text("utf-8")
    assert pdf.read_bytes().startswith(b"%PDF")


def test_the_figure_has_title_legend_and_caption_like_the_others() -> None:
    above, foot = composition_figure(FOUND).subfigs
    assert above.get_suptitle() == "Noise that returning clients cost: ε = 0.5, δ = 1e-06 for all batches together"
    assert [text.get_text() for text in above.legends[0].get_texts()] == [PAPER, RENYI, EXACT]
    assert foot.texts[0].get_text().startswith("MAB Appendix I, computed: nothing is played.")


@pytest.mark.parametrize(
    ("epsilon", "delta", "batches", "field"),
    [
        *((bad, 1e-6, (1,), "epsilon") for bad in (1.0, 0.0, -1.0, 1e-300, math.inf, math.nan)),
        *((0.5, bad, (1,), "delta") for bad in (0.5, 0.0, -1.0, 1e-320, math.inf, math.nan)),
        *((0.5, 1e-6, bad, "batches") for bad in ((), (0,), (1, 10**9))),
    ],
)
def test_outside_the_theorem_it_is_refused(epsilon: float, delta: float, batches: tuple[int, ...], field: str) -> None:
    with pytest.raises(BadParameter, match=rf"^{field} = .*\[") as refused:
        composition_curves(epsilon, delta, batches)
    assert refused.value.field == field


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-4, 1e-18), (1e-4, 0.499), (0.999, 1e-18), (0.999, 0.499)])
def test_at_the_ends_of_what_is_allowed_there_are_figures(epsilon: float, delta: float) -> None:
    result = composition_curves(epsilon, delta)
    assert all(
        math.isfinite(value) and value > 0 for curve in (result.paper, result.rdp, result.exact) for value in curve
    )
    assert list(result.rdp) == sorted(result.rdp)


def test_the_figure_command_writes_both_pictures_and_refuses_what_it_does_not_draw(tmp_path: Path) -> None:
    runner = CliRunner()
    assert runner.invoke(app, ["figure", "composition", "--out", str(tmp_path / "new")]).exit_code == 0
    assert (tmp_path / "new" / "composition.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (tmp_path / "new" / "composition.svg").read_text("utf-8")
    refused = runner.invoke(app, ["figure", "nonsense", "--out", str(tmp_path)])
    assert isinstance(refused.exception, BadParameter)
