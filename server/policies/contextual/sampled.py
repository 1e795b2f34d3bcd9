"""Thompson sampling of contextual policies: one draw around the private estimate takes the place of the bonus.

    θ̃ = θ̂ + w β V^(-1/2) z,   z standard normal, w the `width_scale`

θ̂, V and β are those of another policy after all batches so far, so that V and θ̂ count the noise that was released. A
batch's clients choose by ⟨φ, θ̃⟩: the decision has neither V⁻¹ nor β. z comes from the run's public coins, so that θ̃ is
a function of released sums. Before the first batch θ̃ = z: the posterior of Agrawal & Goyal without data, but for its
length, which changes no choice.

    linear-thompson   `linucb`. Agrawal & Goyal 2013 draw N(θ̂, v² B⁻¹) with v = R √(9 d ln(t/δ)), for V = B without
                      noise and λ = 1. Here β takes the place of v: any bound on ‖θ* - θ̂‖ in the norm of V serves the
                      argument of Abeille & Lazaric 2017, and CTX Lemma A.2 has one for noised sums.
    gloc-thompson     `ldp-gloc`. GLOC-TS (Jun et al. 2017) on its estimate, V and β. GLM-TSL (Kveton et al. 2020)
                      draws around the maximum of the likelihood, which no sum of clients' vectors determines.

No bound on the regret is stated. Those of Agrawal & Goyal and of GLOC-TS are for sums without noise, and all of them
for a new draw for each client, where a batch shares one here. The widths of `ldp-gloc` have an unnamed constant anyway.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distrust.common.bandit.contextual_choice import ChoiceRule
from distrust.common.bandit.error_law import Floats
from distrust.common.extras import special
from distrust.common.randomness import PublicStream, uniforms
from distrust.common.specs.thompson import SampledSpec
from distrust.server.policies.base import RunFacts
from distrust.server.policies.contextual.base import ContextualPolicy, Core
from distrust.server.policies.contextual.designs import RoundNoise


class SampledCore(Core):
    """Draws of R runs, each with the coins of its own digest, around the rules of `core`, which have a bonus."""

    def __init__(self, core: Core, scale: float, runs: Sequence[RunFacts]) -> None:
        self._core, self._scale, self.cumulative = core, scale, core.cumulative
        self._coins = [PublicStream(run.digest, "theta") for run in runs]
        self.rule = self._sampled()

    @property
    def indefinite(self) -> NDArray[np.int64] | None:
        return self._core.indefinite

    def learn(self, sums: Floats, noise: RoundNoise) -> None:
        self._core.learn(sums, noise)
        self.rule = self._sampled()

    def _sampled(self) -> ChoiceRule:
        rule = self._core.rule
        each = rule.theta[0].size
        drawn = np.stack([special.ndtri(uniforms(coins, each)) for coins in self._coins]).reshape(rule.theta.shape)
        if rule.inverse is None:
            return ChoiceRule(rule.theta + drawn, anchor=rule.anchor)
        # The symmetric root of V⁻¹ is the same on every machine; one from factors has signs or an order of its own.
        values, vectors = np.linalg.eigh(rule.inverse)
        turned = np.sqrt(np.maximum(values, 0)) * (vectors.mT @ drawn[..., np.newaxis])[..., 0]
        away = (vectors @ turned[..., np.newaxis])[..., 0]
        beta = np.reshape(rule.beta, (-1, 1, 1))
        return ChoiceRule(rule.theta + self._scale * beta * away, anchor=rule.anchor)


class SampledPolicy(ContextualPolicy):
    """A policy of one run that draws around the core that its class names."""

    def core(self, runs: Sequence[RunFacts]) -> Core:
        assert isinstance(self._spec, SampledSpec)
        return SampledCore(super().core(runs), self._spec.width_scale, runs)
