"""Tests that every algorithm of docs/concepts/linear.md runs by its name, and asks for what its source states."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from distrust.lab.play import in_process
from distrust.lab.play.result import Result
from distrust.lab.play.run_file import parse

TEXT = (Path(__file__).parents[3] / "docs" / "concepts" / "linear.md").read_text("utf-8")
ROWS = {
    name: (policy, mechanism)
    for name, policy, mechanism in re.findall(r"^\| (.+?) \| .+? \| `({.+?})` \| `({.+?})` \|$", TEXT, re.MULTILINE)
}
DISTRIBUTED = '{name = "linear-distributed", arms = 20, dimension = 3, seed = 3}'
SPHERE = '{name = "linear-sphere", arms = 10, dimension = 2, seed = 3}'


def play(name: str, horizon: int, calibration: str = "exact") -> Result:
    policy, mechanism = ROWS[name]
    world = DISTRIBUTED if "dp-dpe" in policy else SPHERE
    chosen = mechanism.replace("}", f', calibration = "{calibration}"}}')
    lines = [f"policy = {policy}", f"mechanism = {chosen}", f"environment = {world}", "unsafe = {noise_seed = 1}"]
    return in_process.run(parse("\n".join(['run = "named"', f"horizon = {horizon}", *lines])))


def test_the_table_has_every_algorithm() -> None:
    assert {"DPE", "DPE-FixedU", "CDP-DPE", "LDP-DPE", "SDP-DPE", "PE", "CDP-PE", "LDP-PE", "SDP-PE"} <= ROWS.keys()
    assert sum("almost-free" in policy for policy, _ in ROWS.values()) == 8


@pytest.mark.parametrize("name", ROWS)
def test_every_algorithm_runs_by_name(name: str) -> None:
    result = play(name, 2000)
    assert sum(result.pulls) == 2000
    assert len(result.rounds) >= 4
    assert result.arms[result.best].active


@pytest.mark.parametrize("name", [name for name, (policy, _) in ROWS.items() if "dp-dpe" in policy])
def test_dp_dpe_doubles_its_phases_and_grows_its_cohorts(name: str) -> None:
    """h = 2, 4, 8, …; T(x) = ⌈hπ(x)⌉; ⌈2^{0.8 l}⌉ clients, at least the 2 that may be released, or as many as fixed."""
    for record in play(name, 2000).rounds:
        assert record.decision.kind == "play-design"
        assert 2**record.batch <= sum(record.decision.times) <= 2**record.batch + len(record.decision.times)
        fixed = 40 if name == "DPE-FixedU" else math.ceil(2 ** (0.8 * record.batch))
        assert [cohort.clients for cohort in record.cohorts] == [fixed]


@pytest.mark.parametrize(
    "name", [name for name, (policy, _) in ROWS.items() if "-free" in policy and "core" not in name]
)
def test_almost_free_plays_ln_t_batches_that_grow_by_q_and_then_the_best(name: str) -> None:
    """With exact widths batch i has length q^{i-1+f}, f the fractional part of ln T."""
    horizon = 20_000
    shift = math.log(horizon) % 1 - 1
    result = play(name, horizon)
    base = (2 * horizon) ** (1 / math.log(horizon))
    assert [record.batch for record in result.rounds] == list(range(1, math.floor(math.log(horizon))))
    for one in result.rounds[3:]:
        length = base ** (one.batch + shift)
        assert length <= sum(count for _, count in one.pulls()) <= length + len(one.arms)
    assert result.chosen is not None
    in_batches = np.bincount(
        [arm for one in result.rounds for arm, _ in one.pulls()],
        [count for one in result.rounds for _, count in one.pulls()],
        minlength=len(result.pulls),
    )
    assert result.pulls[result.chosen] - in_batches[result.chosen] == horizon - in_batches.sum() > 0


@pytest.mark.parametrize("name", ["central, no core set", "local, no core set", "shuffled, no core set"])
def test_without_a_core_set_every_active_action_is_played(name: str) -> None:
    active = set(range(10))
    for record in play(name, 5000).rounds:
        assert {arm for arm, _ in record.pulls()} == active
        active -= set(record.eliminated)


def test_phased_elimination_is_dp_pe_without_privacy() -> None:
    """Number for number, with widths and sums of the same run."""
    named = play("PE", 5000)
    ROWS["the same"] = ('{name = "dp-pe"}', '{name = "identity"}')
    assert play("the same", 5000).rounds == named.rounds


@pytest.mark.parametrize("policy", ["dp-dpe", "dp-pe", "almost-free"])
def test_a_ball_is_played_through_its_net_from_a_run_file(policy: str) -> None:
    """97 points of the disc: θ* is met to within the spacing, and most points drop out."""
    world = '{name = "linear-sphere", seed = 3, actions = {kind = "ball", dimension = 2, spacing = 0.15}}'
    lines = ['run = "ball"', "horizon = 100_000", f'policy = {{name = "{policy}"}}', f"environment = {world}"]
    file = parse("\n".join([*lines, 'mechanism = {name = "distributed-polya", epsilon = 5.0}']))
    result, net = in_process.run(file), file.world()
    assert file.config.arms == len(net.means) == 97
    assert 1 - 0.15 <= net.means.max() <= 1
    assert result.chosen is not None
    assert net.means[result.chosen] >= net.means.max() - 0.15
    assert result.arms[result.best].active
    assert sum(arm.active for arm in result.arms) < 40
