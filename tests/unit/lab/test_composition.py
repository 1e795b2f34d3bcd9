"""Tests MAB Appendix I: Rényi composition needs less noise than advanced composition, by its factor."""

import math

import pytest
from dp_accounting import dp_event
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

from distrust.common.errors import BadParameter
from distrust.lab.figures.composition import (
    BATCHES,
    EXACT,
    PAPER,
    RENYI,
    advanced_sigma,
    composition_curves,
    composition_figure,
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


def test_the_figure_has_title_legend_and_caption_like_the_others() -> None:
    above, foot = composition_figure(FOUND).subfigs
    assert above.get_suptitle() == "Noise that returning clients cost: ε = 0.5, δ = 1e-06 for all batches together"
    assert [text.get_text() for text in above.legends[0].get_texts()] == [PAPER, RENYI, EXACT]
    assert foot.texts[0].get_text().startswith("MAB Appendix I, computed: nothing is played.")


@pytest.mark.parametrize("batches", [(), (0,), (1, 1025)])
def test_a_number_of_batches_out_of_range_is_refused(batches: tuple[int, ...]) -> None:
    with pytest.raises(BadParameter, match=r"^batches = .*, each in \[1, 1024\]"):
        composition_curves(0.5, 1e-6, batches)


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-4, 1e-18), (1e-4, 0.499), (0.999, 1e-18), (0.999, 0.499)])
def test_at_the_ends_of_what_is_allowed_there_are_figures(epsilon: float, delta: float) -> None:
    result = composition_curves(epsilon, delta)
    assert all(
        math.isfinite(value) and value > 0 for curve in (result.paper, result.rdp, result.exact) for value in curve
    )
    assert list(result.rdp) == sorted(result.rdp)
