"""Tests MAB's claims about its figures, on the rows that docs/figures.md publishes."""

import numpy as np
import pytest

from distrust.client.environments import read_spec
from distrust.lab.sweep.cells import load_experiment
from tests.support.claims import published

VARIANTS = ("", ", exact")


@pytest.mark.parametrize("variant", VARIANTS, ids=("published", "exact"))
def test_dist_dp_se_comes_down_to_dp_se_as_t_grows(variant: str) -> None:
    """The gap between the time averages is at most a quarter of the gap at a tenth of the horizon."""
    mab = published("mab-2")
    for panel in ("ε = 0.1", "ε = 0.5"):
        gap = mab.curve(panel, "Dist-DP-SE" + variant) - mab.curve(panel, "DP-SE")
        times = load_experiment("mab-2").places(int(mab.of(panel, "DP-SE", "horizon")[0]))
        average = gap / times
        early = average[np.searchsorted(times, 0.1 * times[-1])]
        assert early > 0
        assert abs(average[-1]) <= early / 4


@pytest.mark.parametrize("variant", VARIANTS, ids=("published", "exact"))
def test_a_larger_epsilon_makes_the_gap_to_dp_se_smaller(variant: str) -> None:
    mab = published("mab-2")
    gaps = [mab.mean(panel, "Dist-DP-SE" + variant) - mab.mean(panel, "DP-SE") for panel in mab.panels]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] > 2 * gaps[-1] > 0


@pytest.mark.parametrize("variant", VARIANTS, ids=("published", "exact"))
def test_renyi_privacy_costs_no_more_than_pure_in_any_world(variant: str) -> None:
    mab = published("mab-2")
    for panel in mab.panels:
        pure, renyi = (mab.regret(panel, name + variant) for name in ("Dist-DP-SE", "Dist-RDP-SE"))
        assert (renyi <= pure).all()


@pytest.mark.parametrize("variant", VARIANTS, ids=("published", "exact"))
def test_renyi_privacy_saves_most_at_small_epsilon(variant: str) -> None:
    mab = published("mab-2")
    saved = 1 - mab.means("Dist-RDP-SE" + variant) / mab.means("Dist-DP-SE" + variant)
    assert saved[0] > 0.25
    assert saved[0] > saved[-1] + 0.1


@pytest.mark.parametrize("variant", VARIANTS, ids=("paper", "exact"))
def test_central_and_distributed_pure_privacy_cost_the_same(variant: str) -> None:
    mab = published("mab-4")
    central, distributed = (mab.mean("ε = 0.1", name + variant) for name in ("CDP-SE", "Dist-DP-SE"))
    assert central == pytest.approx(distributed, rel=0.1)


def test_with_the_papers_widths_concentrated_privacy_costs_less_than_renyi() -> None:
    mab = published("mab-4")
    assert mab.mean("ε = 0.1", "Dist-CDP-SE") < 0.9 * mab.mean("ε = 0.1", "Dist-RDP-SE")


def test_with_exact_widths_concentrated_and_renyi_privacy_cost_the_same() -> None:
    """Sums of Skellam and of discrete Gaussian noise of one variance are alike. Only their tail bounds differ."""
    mab = published("mab-4")
    concentrated, renyi = (mab.mean("ε = 0.1", name) for name in ("Dist-CDP-SE, exact", "Dist-RDP-SE, exact"))
    assert concentrated == pytest.approx(renyi, rel=0.1)


@pytest.mark.parametrize("variant", VARIANTS, ids=("paper", "exact"))
def test_local_privacy_is_far_worse_in_every_world(variant: str) -> None:
    mab = published("mab-4")
    local, distributed = (mab.regret("ε = 0.1", name + variant) for name in ("LDP-SE", "Dist-DP-SE"))
    assert (local > 2 * distributed).all()
    assert local.mean() > 3 * distributed.mean()


@pytest.mark.parametrize("series", ["LDP-SE", "LDP-SE, exact"])
def test_local_privacy_at_epsilon_one_tenth_is_uniform_play_but_for_the_unfinished_batch(series: str) -> None:
    """It drops no arm. 15 batches of 2ᵇ clients an arm are 655,340 pulls, and the rest is played arm after arm."""
    whole, rest = 2**16 - 2, 10**6 - 10 * (2**16 - 2)
    pulls = np.array([whole + min(2**16, max(0, rest - arm * 2**16)) for arm in range(10)])
    assert pulls.sum() == 10**6
    rows = [row for row in published("mab-4").rows if (row.panel, row.series) == ("ε = 0.1", series)]
    for row in rows:
        means = read_spec({"name": "gaussian-easy", "seed": row.seed}).build().means
        assert row.regret == pytest.approx(float((means.max() - means) @ pulls))
