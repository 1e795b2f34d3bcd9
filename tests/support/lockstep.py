"""Plays a core of several runs in a simulated world, all runs side by side, with Gaussian noise or with a mechanism."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from distrust.client.environments.contextual import ContextualWorld, GlmSphereSpec
from distrust.common.bandit.contextual_choice import ChoiceRule
from distrust.common.bandit.contextual_sum import ContextualSum, Observation
from distrust.common.dp.mechanisms import Mechanism, MechanismSpec, plan
from distrust.common.randomness import Stream, UnsafeSeededStream
from distrust.common.specs.contextual import ContextualPolicySpec
from distrust.server.policies.base import RunFacts
from distrust.server.policies.contextual.base import Core
from distrust.server.policies.contextual.designs import RoundNoise

Floats = NDArray[np.float64]


def facts(arms: int, horizon: int, *, paper: bool = False) -> RunFacts:
    return RunFacts(arms, horizon, 1, "paper" if paper else "exact", 0.0)


def sphere(**fields: object) -> ContextualWorld:
    """Return a world of GLB section 5, drawn from seed 7 unless the words say otherwise."""
    return GlmSphereSpec.model_validate({"name": "glm-sphere", "seed": 7, **fields}).build()


def spec_for(kind: type[ContextualPolicySpec], world: ContextualWorld, **fields: object) -> ContextualPolicySpec:
    """Return a policy's table with what its environment fills in."""
    told = {"features": world.dimension, "link": world.link, "parameters": world.parameters}
    name = kind.model_fields["name"].annotation.__args__[0]  # type: ignore[union-attr]
    return kind.model_validate({"name": name, **told, "rewards": list(world.rewards), **fields})


def same_alone(make: Callable[[int], Core], dimensions: Sequence[int], deviation: float) -> None:
    """Assert that each of five runs side by side has the same rules, to the last bit, as alone.

    dimensions  D of each round's sums, which are drawn at random.
    """
    rng, together, alone = np.random.default_rng(8), make(5), [make(1) for _ in range(5)]
    for dimension in dimensions:
        sums, noise = deviation * rng.standard_normal((5, dimension)), RoundNoise(1, deviation)
        together.learn(sums, noise)
        for run, core in enumerate(alone):
            core.learn(sums[run : run + 1], noise)
            for array in ("theta", "inverse", "beta", "anchor"):
                whole, own = getattr(together.rule, array), getattr(core.rule, array)
                assert (whole is None) == (own is None)
                assert whole is None or isinstance(whole, float) or (whole[run] == own[0]).all(), array


@dataclass
class Lockstep:
    """R runs of a core.

    deviation  standard deviation of each client's Gaussian noise, in every entry; or `mechanism`, words of a run file.
    regret     of each run so far, shape (R,).
    """

    core: Core
    spec: ContextualPolicySpec
    world: ContextualWorld
    runs: int
    seed: int = 1
    deviation: float = 0.0
    mechanism: dict[str, object] | None = None
    regret: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.regret, self._number = np.zeros(self.runs), 0

    def play(self, rounds: int) -> Floats:
        """Play on, and return the regret of each run in these rounds, shape (R,)."""
        before = self.regret.copy()
        for _ in range(rounds):
            self.core.learn(*self.round(self.core.rule))
        return self.regret - before

    def round(self, rule: ChoiceRule) -> tuple[Floats, RoundNoise]:
        """Return a batch's sums, shape (R, D), by this rule."""
        self._number += 1
        stream = UnsafeSeededStream(self.seed, f"round {self._number}")
        world, batch = self.world, self.spec.batch
        met = world.contexts(self.runs * batch, stream)
        features = np.broadcast_to(met.features, (self.runs * batch, *met.features.shape[1:]))
        features = features.reshape(self.runs, batch, *features.shape[1:])
        arms, predictors = rule.choose(features)
        means = world.means(features)
        own = np.take_along_axis(means, arms[..., np.newaxis], axis=-1)[..., 0]
        self.regret += (means.max(axis=-1) - own).sum(axis=-1)
        column = arms if features.shape[2] > 1 else np.zeros_like(arms)
        chosen = np.take_along_axis(features, column[..., np.newaxis, np.newaxis], axis=2)[:, :, 0]
        rewards = world.pay(own, met.payout_draws.reshape(own.shape))
        statistic = self.spec.statistic(world.arms, _Played(rule.only))  # type: ignore[arg-type]
        assert isinstance(statistic, ContextualSum)
        vectors = statistic.vectors(Observation(arms, chosen, rewards, predictors))
        return self._noised(statistic, vectors, stream)

    def _noised(self, statistic: ContextualSum, vectors: Floats, stream: Stream) -> tuple[Floats, RoundNoise]:
        batch = self.spec.batch
        if self.mechanism is None:
            rng = np.random.default_rng(stream.words(4).tolist())
            drawn = self.deviation * np.sqrt(batch) * rng.standard_normal(vectors[:, 0].shape)
            return vectors.sum(axis=1) + drawn, RoundNoise(batch, self.deviation * np.sqrt(batch))
        planned = mechanism_for(statistic, batch, **self.mechanism)
        rows = planned.randomize(vectors.reshape(-1, statistic.dimension), stream)
        sums = rows.reshape(self.runs, batch, -1).sum(axis=1) % planned.modulus
        result = np.stack([planned.estimate(total, batch, stream) for total in sums])
        return result, RoundNoise(batch, float(np.hypot(planned.error(batch).std, planned.rounding * np.sqrt(batch))))


@dataclass(frozen=True)
class _Played:
    only: int | None


def mechanism_for(statistic: ContextualSum, clients: int, **fields: object) -> Mechanism:
    """Return the mechanism of these words for one cohort, of which all clients answer."""
    spec = MechanismSpec.model_validate(fields)
    size = {"clients": clients, "min_survivors": clients, "min_honest": clients}
    return plan(spec, **size, overflow_probability=1e-9, statistic=statistic)


def uniform_regret(world: ContextualWorld, clients: int) -> float:
    """Return the mean regret of clients that play any arm with the same chance, by 20,000 draws."""
    features = world.contexts(20_000, UnsafeSeededStream(3, "uniform")).features
    means = world.means(features)
    return clients * float((means.max(axis=-1) - means.mean(axis=-1)).mean())
