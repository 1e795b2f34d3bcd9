"""What FREE says of its figures, on their quick versions."""

import numpy as np
import pytest

from tests.system.claims import seen

pytestmark = pytest.mark.slow

CENTRAL, SHUFFLED, LOCAL, PUBLIC = "Alg. 1 (central)", "Alg. 3 (shuffled)", "Alg. 2 (local)", "without privacy"
VARIANTS = ("", ", exact")


@pytest.mark.parametrize("variant", VARIANTS, ids=("paper", "exact"))
@pytest.mark.parametrize("series", [CENTRAL, SHUFFLED, LOCAL])
def test_regret_falls_with_epsilon(series: str, variant: str) -> None:
    assert (np.diff(seen("free-2").means(series + variant)) < 0).all()


@pytest.mark.parametrize("variant", VARIANTS, ids=("paper", "exact"))
def test_central_is_best_at_every_epsilon(variant: str) -> None:
    free = seen("free-2")
    for series in (SHUFFLED, LOCAL):
        assert (free.means(CENTRAL + variant) < 1.2 * free.means(series + variant)).all()
    assert free.mean("ε = 0.1", CENTRAL + variant) < 0.8 * free.mean("ε = 0.1", SHUFFLED + variant)


@pytest.mark.parametrize("variant", VARIANTS, ids=("paper", "exact"))
@pytest.mark.parametrize("panel", ["ε = 0.1", "ε = 1"])
def test_local_is_above_the_others_as_long_as_shuffling_amplifies(panel: str, variant: str) -> None:
    free = seen("free-2")
    local, shuffled, central = (free.mean(panel, name + variant) for name in (LOCAL, SHUFFLED, CENTRAL))
    assert local > 1.5 * shuffled
    assert local > 2 * central


def test_with_exact_widths_central_and_shuffled_come_down_to_the_regret_without_privacy() -> None:
    free = seen("free-2")
    public = free.mean("ε = 10", PUBLIC)
    assert free.mean("ε = 10", CENTRAL + ", exact") < 1.1 * public
    assert free.mean("ε = 1", CENTRAL + ", exact") < 1.25 * public
    assert free.mean("ε = 10", SHUFFLED + ", exact") < 2 * public


def test_with_the_papers_widths_they_stay_above_it() -> None:
    """Their γ is wider than phased elimination's without any noise, so that ε → ∞ does not close the gap."""
    free = seen("free-2")
    assert free.mean("ε = 10", CENTRAL) > 1.5 * free.mean("ε = 10", PUBLIC)


def test_noise_on_a_core_set_costs_little() -> None:
    free = seen("free-3")
    for variant, most in (("", 1.3), (", exact", 1.3)):
        noisy, plain = (free.means(name + variant) for name in ("core set", "core set without noise"))
        assert (noisy < most * plain).all()


def test_a_core_set_beats_noise_on_all_actions() -> None:
    """By the paper's widths: threefold at ε = 0.3, hardly at ε = 3."""
    free = seen("free-3")
    assert (free.regret("ε = 0.3", "no core set") > 2 * free.regret("ε = 0.3", "core set")).all()
    assert (free.regret("ε = 3", "no core set") > free.regret("ε = 3", "core set")).all()


def test_by_exact_widths_too_the_core_set_wins_where_noise_is_dear_and_loses_where_it_is_not() -> None:
    """The paper's claim is its first half; the second is ours, and shows that its widths are not the cause."""
    free = seen("free-3-exact")
    assert (free.regret("ε = 0.1", "no core set") > 1.15 * free.regret("ε = 0.1", "core set")).all()
    assert (free.regret("ε = 10", "no core set") < free.regret("ε = 10", "core set")).all()
