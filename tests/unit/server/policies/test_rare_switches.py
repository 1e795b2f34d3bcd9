"""Tests LinUCB and SBLB whose decisions change rarely against plain copies of the rules, with and without noise.

The simulated clients, contexts and noise are those of `Lockstep`; the plain copies see the same sums.
"""

import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.bandit.error_law import Floats
from distrust.common.specs.linucb import LinUcbSpec, SblbSpec
from distrust.lab.play import in_process
from distrust.lab.play.lock_step import play_together
from distrust.lab.play.result import facts as result_facts
from distrust.lab.play.run_file import RunFile, parse
from distrust.server.policies.contextual.base import Core
from distrust.server.policies.contextual.designs import RoundNoise
from distrust.server.policies.contextual.linucb import LinUcbCore
from distrust.server.policies.contextual.noise_bounds import matrix_bound, vector_bound
from distrust.server.policies.contextual.sblb import SblbCore
from tests.support.lockstep import Lockstep, facts, same_alone, spec_for, sphere
from tests.support.picked import picked

SIZE, ARMS, ALPHA = 3, 10, 0.1
WORLD = sphere(arms=ARMS, dimension=SIZE)


def linucb(runs: int, rounds: int, **fields: object) -> LinUcbCore:
    spec = spec_for(LinUcbSpec, WORLD, failure=ALPHA, **fields)
    assert isinstance(spec, LinUcbSpec)
    return LinUcbCore(spec, facts(ARMS, rounds), runs)


def sblb(runs: int, rounds: int, **fields: object) -> SblbCore:
    spec = spec_for(SblbSpec, WORLD, failure=ALPHA, **fields)
    assert isinstance(spec, SblbSpec)
    return SblbCore(spec, facts(ARMS, rounds), runs)


def game(core: Core, runs: int, deviation: float = 0.0) -> Lockstep:
    return Lockstep(core, spec_for(LinUcbSpec, WORLD, failure=ALPHA), WORLD, runs, deviation=deviation)


def parts(sums: Floats) -> tuple[Floats, Floats]:
    """Return Σyφ, shape (R, d), and Σφφᵀ, shape (R, d, d), with what noise they have."""
    statistic = spec_for(LinUcbSpec, WORLD).statistic(ARMS, None)
    assert isinstance(statistic, ContextualSum)
    linear, moments = statistic.parts(sums)
    assert moments is not None
    return linear[:, 0], moments[:, 0]


class Rarely:
    """LinUCB of one run without noise, λ = 1, with the condition of Abbasi-Yadkori et al. 2011, section 5.1, on det V.

    It holds the ellipsoid that its decision was formed with. The first client brings a decision in any case.
    """

    def __init__(self, factor: float, spread: float) -> None:
        self._factor, self._spread = factor, spread
        self._design, self._sum, self._clients = np.eye(SIZE), np.zeros(SIZE), 0
        self.held, self.theta, self.beta, self.switches = np.zeros((SIZE, SIZE)), np.zeros(SIZE), 0.0, 0

    def see(self, linear: Floats, moments: Floats) -> None:
        self._design, self._sum, self._clients = self._design + moments, self._sum + linear, self._clients + 1
        if np.linalg.det(self._design) > (1 + self._factor) * np.linalg.det(self.held):
            logarithm = 2 * math.log(2 / ALPHA) + SIZE * math.log(1 + self._clients / SIZE)
            self.held, self.theta = self._design, np.linalg.inv(self._design) @ self._sum
            self.beta, self.switches = self._spread * math.sqrt(logarithm) + 1, self.switches + 1


@pytest.mark.parametrize("factor", [0.1, 1.0])
def test_without_noise_decisions_change_as_the_condition_on_the_determinant_says_and_no_more_often(
    factor: float,
) -> None:
    runs, rounds = 3, 150
    core, low, high = linucb(runs, rounds, switch=factor), *WORLD.rewards
    plain, playing = [Rarely(factor, (high - low) / 2) for _ in range(runs)], game(core, runs)
    for _ in range(rounds):
        sums, noise = playing.round(core.rule)
        core.learn(sums, noise)
        for run, (one, linear, moments) in enumerate(zip(plain, *parts(sums), strict=True)):
            one.see(linear, moments)
            assert core.rule.inverse is not None
            assert core.rule.theta[run, 0] == pytest.approx(one.theta)
            assert core.rule.inverse[run, 0] == pytest.approx(np.linalg.inv(one.held))
            assert np.asarray(core.rule.beta)[run] == pytest.approx(one.beta)
    assert core.switches is not None
    assert core.switches.tolist() == [one.switches for one in plain]
    most = 1 + SIZE * math.log(1 + rounds / SIZE) / math.log1p(factor)
    assert 3 < core.switches.max() <= most < rounds


def test_with_noise_no_direction_and_no_determinant_outgrows_the_factor_of_a_decision_that_is_held() -> None:
    """The condition on det V alone would have held some decisions on whose V a direction had outgrown."""
    runs, rounds, factor = 20, 200, 0.05
    core = linucb(runs, rounds, switch=factor)
    playing, total, alone = game(core, runs, deviation=1.0), np.zeros((runs, SIZE, SIZE)), 0
    for number in range(rounds):
        before = core.rule.inverse
        sums, noise = playing.round(core.rule)
        core.learn(sums, noise)
        assert core._regularizer is not None
        assert core.rule.inverse is not None
        total += parts(sums)[1]
        newest = total + core._regularizer.value * np.eye(SIZE)
        # The eigenvalues of U⁻¹V, by another road than the policy's: U⁻¹ is not symmetric to V.
        grown = np.linalg.eigvals(core.rule.inverse[:, 0] @ newest).real
        assert grown.max() <= (1 + factor) * (1 + 1e-9)
        assert grown.prod(axis=-1).max() <= (1 + factor) * (1 + 1e-9)
        if number:
            assert before is not None
            changed = (core.rule.inverse != before).any(axis=(1, 2, 3))
            alone += (changed & (np.linalg.det(before[:, 0] @ newest) <= 1 + factor)).sum()
    assert core.indefinite.tolist() == [0] * runs
    assert core.switches is not None
    assert core.switches.max() < rounds
    assert alone > 0


def test_sblb_has_its_formulas_for_the_noise_so_far_and_holds_them_between_two_changes() -> None:
    runs, rounds, deviation, first, eta = 5, 120, 0.5, 20.0, 0.25
    core, low, high = sblb(runs, rounds, regularizer=first, switch=eta), *WORLD.rewards
    playing, total, designs = game(core, runs, deviation), np.zeros((runs, SIZE)), np.zeros((runs, SIZE, SIZE))
    eyes, logarithm = np.eye(SIZE), 2 * math.log(2 / ALPHA)
    for t in range(1, rounds + 1):
        held, switches = core.rule, core.switches.copy()
        sums, noise = playing.round(held)
        core.learn(sums, noise)
        linear, moments = parts(sums)
        total, designs = total + linear, designs + moments
        q = deviation * math.sqrt(t) * matrix_bound(SIZE, ALPHA / 8 / rounds, exact=True)
        h = deviation * math.sqrt(t) * vector_bound(SIZE, ALPHA / 8 / rounds, exact=True)
        beta = (high - low) / 2 * math.sqrt(logarithm + SIZE * math.log(1 + t / (SIZE * first)))
        beta += math.sqrt(first + 3 * q) + h / math.sqrt(first + q)
        design = designs + (first + 2 * q) * eyes
        rule, changed = core.rule, core.switches > switches
        assert rule.inverse is not None
        for run in range(runs):
            if changed[run]:
                assert np.linalg.inv(rule.inverse[run, 0]) == pytest.approx(design[run])
                assert rule.theta[run, 0] == pytest.approx(np.linalg.solve(design[run], total[run]))
                assert np.asarray(rule.beta)[run] == pytest.approx(beta)
            else:
                assert held.inverse is not None
                assert np.linalg.det(held.inverse[run, 0] @ design[run]) <= (1 + eta) * (1 + 1e-9)
                assert (rule.inverse[run] == held.inverse[run]).all()
                assert (rule.theta[run] == held.theta[run]).all()
                assert np.asarray(rule.beta)[run] == np.asarray(held.beta)[run]
    assert core.switches.min() > 1
    assert core.switches.max() < rounds / 2


def test_sblb_without_noise_and_with_a_regularizer_of_one_is_linucb() -> None:
    ours, theirs = sblb(3, 80, regularizer=1.0, switch=0.5), linucb(3, 80, switch=0.5)
    regrets = [game(core, 3).play(80).tolist() for core in (ours, theirs)]
    assert regrets[0] == pytest.approx(regrets[1])
    assert ours.rule.theta == pytest.approx(theirs.rule.theta)
    assert ours.rule.beta == pytest.approx(np.asarray(theirs.rule.beta))
    assert theirs.switches is not None
    assert ours.switches.tolist() == theirs.switches.tolist()


def test_the_first_regularizer_is_the_papers_for_half_the_matrix_unless_the_table_has_one() -> None:
    assert SblbSpec(name="sblb", features=2).first_regularizer(400) == 40.0
    assert SblbSpec(name="sblb", features=2, regularizer=3.0).first_regularizer(400) == 3.0
    assert SblbSpec(name="sblb", features=2).switch == 0.5


def test_the_widths_of_sblb_hold_in_all_rounds() -> None:
    """They may fail with probability 0.5: of 60 runs more than 45 would with probability 3e-5."""
    spec = spec_for(SblbSpec, WORLD, failure=0.5, regularizer=1.0)
    assert isinstance(spec, SblbSpec)
    core = SblbCore(spec, facts(ARMS, 150), 60)
    playing, failed, ratios = game(core, 60, deviation=1.0), np.zeros(60, dtype=bool), []
    for _ in range(150):
        playing.play(1)
        assert core.rule.inverse is not None
        away = core.rule.theta[:, 0] - WORLD.theta[0]  # type: ignore[attr-defined]
        squares = np.einsum("rd,rd->r", away, np.linalg.solve(core.rule.inverse[:, 0], away[..., None])[..., 0])
        failed |= np.sqrt(squares) > core.rule.beta
        ratios.append(float((np.sqrt(squares) / core.rule.beta).max()))
    assert failed.sum() <= 45
    assert max(ratios) > 0.1  # the widths are not vacuous


@pytest.mark.parametrize("make", [lambda runs: linucb(runs, 40, switch=0.2), lambda runs: sblb(runs, 40, switch=0.2)])
def test_a_run_learns_the_same_alone(make: Callable[[int], Core]) -> None:
    same_alone(make, [SIZE + SIZE * (SIZE + 1) // 2] * 30, 3.0)


def test_prefix_sums_are_held_by_the_whole_sum_and_a_batchs_own_by_their_total() -> None:
    core, own = (linucb(1, 40, switch=0.5) for _ in range(2))
    rng, total = np.random.default_rng(4), np.zeros((1, 9))
    for _ in range(40):
        context = rng.standard_normal(SIZE)
        context /= np.linalg.norm(context)
        rows, columns = np.triu_indices(SIZE)
        entries = np.outer(context, context)[rows, columns] * np.where(rows == columns, 1, math.sqrt(2))
        sums = np.concatenate([0.5 * context, entries])[np.newaxis]
        total = total + sums
        core.learn(total, RoundNoise(1, 0.0, prefix=True))
        own.learn(sums, RoundNoise(1, 0.0))
    assert core.switches is not None
    assert own.switches is not None
    assert core.switches.tolist() == own.switches.tolist()
    assert core.rule.theta == pytest.approx(own.rule.theta)


TREE = 'name = "tree"\nepsilon = 5.0\ndelta = 1e-2\nbatches = 41'
SHUFFLED = 'name = "shuffled-sphere"\nepsilon = 8.0\ndelta = 1e-2'


def run_file(policy: str, mechanism: str = TREE) -> RunFile:
    return parse(
        f'run = "rarely"\nhorizon = 820\n[policy]\nbatch = 20\n{policy}\n[mechanism]\n{mechanism}\n'
        '[unsafe]\nnoise_seed = 5\n[environment]\nname = "contextual-synthetic"\nseed = 3\narms = 8\ndimension = 2\n'
    )


@pytest.mark.parametrize(
    ("policy", "mechanism"),
    [
        ('name = "linucb"\nswitch = 0.5', TREE),
        ('name = "linucb"\nswitch = 0.5\nwidth_scale = 0.0', TREE),
        ('name = "sblb"', SHUFFLED),
    ],
    ids=["tree", "greedy", "sblb"],
)
def test_a_result_counts_the_changes_and_every_batch_is_released_whether_or_not_its_decision_changed(
    policy: str, mechanism: str
) -> None:
    result = in_process.run(run_file(policy, mechanism))
    assert result.fault is None
    decisions = [record.decision for record in result.rounds]
    changes = sum(before != now for before, now in itertools.pairwise(decisions))
    assert len(decisions) == 41
    assert result.switches in {changes, changes + 1}  # the decision after the last batch reaches no client
    assert 1 <= changes < 30
    assert all(cohort.estimate is not None for one in result.rounds for cohort in one.cohorts)
    line = f"after {result.switches} of 41 batches clients got another decision"
    assert ("switches", line) in result_facts(result)


def test_a_run_without_the_key_has_a_decision_a_batch_and_the_digest_that_it_had() -> None:
    file = run_file('name = "linucb"')
    result = in_process.run(file)
    assert len({record.decision.model_dump_json() for record in result.rounds}) == 41
    assert result.switches is None
    assert "switches" not in result.model_dump()
    assert "switch" not in file.config.model_dump()["policy"]
    assert run_file('name = "linucb"\nswitch = 1.0').config.digest() != file.config.digest()


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ('name = "linucb"\nswitch = 0.0', r"policy\.switch = 0\.0: must be"),
        ('name = "linucb"\nswitch = -1.0', r"policy\.switch = -1\.0: must be"),
        ('name = "linucb"\nregularizer = 2.0', r"policy\.regularizer"),
        ('name = "ldp-ucb"\nswitch = 1.0', r"policy\.switch"),
        ('name = "sblb"\nswitch = 0.0', r"policy\.switch = 0\.0: must be"),
        ('name = "sblb"\nregularizer = 0.5', r"policy\.regularizer = 0\.5: must be at least 1"),
        ('name = "sblb"\nparameters = "multi"', r"policy\.parameters = 'multi'"),
    ],
)
def test_numbers_outside_their_range_are_refused(policy: str, why: str) -> None:
    with pytest.raises(Exception, match=why):
        run_file(policy)


SHOWN = re.findall(
    r"^\| `([\w-]+)`, (\d+) \| (`.+`) \| ([\d,]+) \| ([\d,]+) ± (\d+) \|",
    (Path(__file__).parents[4] / "docs/concepts/contextual.md").read_text("utf-8"),
    re.MULTILINE,
)
"""Rows of the page: mechanism, batch, policy, changes, regret and its standard error."""

BATCHED = [row for row in SHOWN if row[1] != "1"]  # the others take a minute


def test_the_page_has_each_policy_on_each_mechanism_and_a_decision_a_batch_beside_it() -> None:
    assert len(BATCHED) == 13
    assert [row[3] for row in SHOWN if row[2] == "`linucb`"] == ["20,000", "141", "52", "52"]


@pytest.mark.slow
@pytest.mark.parametrize("row", picked(BATCHED, 3, "rare switches"), ids=lambda row: f"{row[2]} on {row[0]}")
def test_the_page_shows_the_changes_and_the_regret_of_a_run_in_the_world_of_figure_1(row: tuple[str, ...]) -> None:
    """Other processors may choose other arms in rounds where two are equal to the last bits."""
    mechanism, batch, policy, changes, regret, error = row
    name, *numbers = re.findall(r"`([^`]+)`", policy)
    words = f'name = "{name}", batch = {batch}, {", ".join(numbers)}'.removesuffix(", ")
    stream = ", batches = 141" if mechanism == "tree" else ""
    played = play_together(
        [
            parse(
                f'run = "rare.{seed - 1}"\nhorizon = 20000\npolicy = {{{words}}}\nunsafe = {{noise_seed = {seed}}}\n'
                f'mechanism = {{name = "{mechanism}", epsilon = 1.0, delta = 0.1{stream}}}\n'
                f'environment = {{name = "contextual-synthetic", arms = 100, seed = {seed}}}\n'
                "intermediary = {dropout = 0.0, corrupt = 0.0, minimum = 1}\n"
            )
            for seed in range(1, 21)
        ]
    )
    regrets = np.array([one.regret[-1] for one in played])
    assert regrets.mean() == pytest.approx(float(regret.replace(",", "")), abs=float(error) / 4 + 0.5)
    assert regrets.std(ddof=1) / math.sqrt(20) == pytest.approx(float(error), rel=0.2)
    counted = [20_000 // int(batch) if one.switches is None else one.switches for one in played]
    assert np.mean(counted) == pytest.approx(float(changes.replace(",", "")), abs=1.0)
    assert all(one.events.width_failures == 0 for one in played)
