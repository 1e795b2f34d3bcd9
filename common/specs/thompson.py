"""Defines the `[policy]` tables of Thompson sampling: of arms, and of contextual policies that draw a θ a batch.

What is drawn follows from released sums and from public coins of the run, which a replay draws again. So drawing costs
no privacy. No theorem bounds the regret of these policies on noised sums: each table says so as `unproven`.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from distrust.common.specs.base import Failure, FirstBatch, RoundSize, WholeRunSpec, event_share
from distrust.common.specs.contextual import BonusSpec, LdpGlocSpec
from distrust.common.specs.linucb import LinUcbSpec


class ThompsonSpec(WholeRunSpec):
    """Thompson sampling of arms in batches that double (Hu & Hegde 2022; Agrawal & Goyal 2017).

    first_batch  a run begins with 2^first_batch clients of each arm, and each later batch of an arm doubles.
    failure      p: any interval of the run fails with probability below p.
    width_scale  factor on the standard deviation of an arm's posterior. At 1 its variance is four times that of the
                 estimate's error, noise included; at 1/2 it is that variance.
    """

    POLICY: ClassVar[str] = "distrust.server.policies.thompson:Thompson"

    name: Literal["thompson"]
    first_batch: FirstBatch = 1
    failure: Failure = 0.1
    width_scale: Annotated[float, Field(ge=0.01, le=1)] = 1.0

    def event_probability(self, size: RoundSize) -> float:
        # The first round has a cohort of each arm, and every other round one: 3p/5 Σ 1/b² < p in all.
        return event_share(size.arms if size.number == 1 else 1, size.number, self.failure)

    @property
    def unproven(self) -> str:
        return "sampled means: no theorem bounds the regret where their variance counts a release's noise"


class SampledSpec(BonusSpec):
    """Numbers of policies that draw θ̃ ~ N(θ̂, β² V⁻¹) for each batch, whose clients play argmax ⟨φ, θ̃⟩.

    θ̂, V and β are those of the policy that a table extends. `width_scale` is a factor on the draw's deviation. A table
    names this class last, so that ranges of its fields are those of the policy.
    """

    @property
    def has_bonus(self) -> bool:
        return False

    @property
    def unproven(self) -> str | None:
        drawn = "a sampled θ: no theorem bounds the regret of one draw a batch on noised sums"
        more = super().unproven
        return drawn if more is None else f"{drawn}; {more}"


class LinearThompsonSpec(LinUcbSpec, SampledSpec):
    """Linear Thompson sampling (Agrawal & Goyal 2013) around the private estimates of `linucb`, with its numbers."""

    POLICY: ClassVar[str] = "distrust.server.policies.contextual.linucb:LinearThompson"

    name: Literal["linear-thompson"]  # type: ignore[assignment]  # the table's own name
    switch: None = Field(default=None, exclude_if=lambda switch: switch is None)  # a draw a batch


class GlocThompsonSpec(LdpGlocSpec, SampledSpec):
    """Thompson sampling for generalized linear models: GLOC-TS (Jun et al. 2017) on the sums of `ldp-gloc`."""

    POLICY: ClassVar[str] = "distrust.server.policies.contextual.baselines:GlocThompson"

    name: Literal["gloc-thompson"]  # type: ignore[assignment]  # the table's own name
