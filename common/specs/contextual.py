"""Defines the `[policy]` tables of contextual policies, whose clients choose arms on their own devices."""

import math
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from typing_extensions import override

from distrust.common.bandit.contextual_choice import Link, Range, ThetaNorm, Weights
from distrust.common.bandit.contextual_sum import ContextualSum, NoiseSource
from distrust.common.bandit.decisions import Decision
from distrust.common.bandit.statistics import Statistic
from distrust.common.specs.base import MOST_ROUNDS, PolicySpec, RoundSize
from distrust.common.wire import LARGEST_COHORT

WARM_UP_SHARE = 10
"""The warm-up takes rounds / WARM_UP_SHARE where a run file says nothing. The paper leaves a constant unnamed."""

EVENTS_A_ROUND = 4
"""Failure events of a contextual run: the self-normalized bound, the noise of V, the noise of u, a wrapped sum."""

Batch = Annotated[int, Field(ge=1, le=LARGEST_COHORT, description="B: clients of a round")]
Parameters = Literal["single", "multi"]
"""single: all arms share θ, and each has a context. multi: a client has one context, and each arm a θ of its own."""


def _word_for_infinity(margin: object) -> object:
    return "inf" if margin == math.inf else margin  # JSON has no infinity


Margin = Annotated[
    Annotated[float, Field(ge=0, allow_inf_nan=False)] | Literal["inf"],
    BeforeValidator(_word_for_infinity),
    Field(description="h/2, in units of the reward; inf screens no arm out"),
]
Step = Annotated[float, Field(gt=0, le=1e6)]


class ContextualPolicySpec(PolicySpec):
    """The numbers that all contextual policies have. A run file leaves out those that its environment fills in.

    features    d, the length of a context.
    parameters  single: θ for all arms and a context an arm. multi: a θ an arm and one context.
    link        μ, from a score to a mean reward.
    rewards     the range of a reward, which clients clamp to.
    batch       B: fresh clients of each round, one cohort. 1 is the papers' sequential play.
    failure     α: probability that the widths fail in the whole run; 1/T when absent.
    weights     value of a reward of 1 of each arm, where they differ: clients then choose by value. Public.

    WIDTHS      calibrations for which a theorem states the widths of decisions.
    MOMENTS     whether clients report φφᵀ as well.
    ANCHORED    whether decisions come with an anchor of the residual.
    """

    REWARDS: ClassVar[Literal["arms", "linear", "contextual"]] = "contextual"
    EVERY_ARM: ClassVar[bool] = False
    STATISTIC: ClassVar[str] = "contextual-sum"
    SEQUENTIAL: ClassVar[bool] = True
    PRINTED: ClassVar[NoiseSource | None] = "CTX"
    WIDTHS: ClassVar[tuple[str, ...]] = ("exact", "paper")
    MOMENTS: ClassVar[bool] = True
    ANCHORED: ClassVar[bool] = False

    features: Annotated[int, Field(ge=1, le=200)]
    parameters: Parameters = "single"
    link: Link = "identity"
    rewards: Range = Field(default_factory=lambda: [0.0, 1.0])
    batch: Batch = 1
    failure: Annotated[float, Field(gt=0, lt=1)] | None = None
    weights: Weights | None = Field(default=None, exclude_if=lambda weights: weights is None)

    @model_validator(mode="after")
    def _statistic_can_be(self) -> Self:
        self.statistic(1, None)  # its own checks name the field
        return self

    @property
    def sequential(self) -> bool:
        return self.batch == 1

    @property
    def decisions(self) -> tuple[str, ...]:
        return ("contextual-choice",)

    @property
    def has_bonus(self) -> bool:
        """Return whether decisions come with V⁻¹ and β."""
        return True

    @property
    def bonus_scale(self) -> float:
        """Return the factor on β of the decisions, in [0, 1]."""
        return 1.0

    @property
    def has_screen(self) -> bool:
        """Return whether decisions may leave arms out."""
        return False

    def public_arm(self, size: RoundSize) -> int | None:
        """Return the arm that all clients of a round play in a warm-up; None where each client chooses."""
        del size
        return None

    @property
    def residual(self) -> Link | None:
        """Return the link of the residual that clients report in place of the reward; None for the reward."""
        return None

    @property
    def largest_theta(self) -> float:
        """Return S, the bound on ‖θ̂‖ that the residual's range follows from."""
        return 1.0

    @property
    def longest_gradient(self) -> float | None:
        """Return the length that clients shorten longer gradients to; None: the longest that there is."""
        return None

    @override
    def statistic(self, arms: int, decision: Decision | None) -> Statistic:
        """Return what clients report; in a warm-up, where all play one public arm, only that arm's block."""
        alone = self.parameters == "single" or getattr(decision, "only", None) is not None
        return ContextualSum(
            features=self.features,
            blocks=1 if alone else arms,
            moments=self.MOMENTS,
            residual=self.residual,
            rewards=self.rewards,
            theta_norm=self.largest_theta,
            clip=self.longest_gradient,
        )

    def failure_of(self, horizon: int) -> float:
        """Return α."""
        return 1 / horizon if self.failure is None else self.failure

    def event_probability(self, size: RoundSize) -> float:
        """Return p' of one round's sum: a quarter of α over the rounds."""
        return max(self.failure_of(size.horizon) / (EVENTS_A_ROUND * math.ceil(size.horizon / self.batch)), 1e-12)

    @property
    def longest(self) -> int:
        return self.batch * MOST_ROUNDS + 1

    @override
    def stated_failure(self, calibration: str, events: Iterable[tuple[float, int]]) -> float | None:
        return self.failure if self.states_widths(calibration) else None

    def states_widths(self, calibration: str) -> bool:
        """Return whether a theorem bounds by α the probability that a decision's width misses θ*."""
        return self.unproven is None and calibration in self.WIDTHS


class BonusSpec(ContextualPolicySpec):
    """Numbers of policies whose clients add β ‖φ‖ to an arm's score.

    width_scale  factor on β: 1 is the policy's own width, 0 plays greedily. Below 1 no theorem states the width.
    """

    width_scale: Annotated[float, Field(ge=0, le=1, exclude_if=lambda scale: scale == 1)] = 1.0

    @property
    def has_bonus(self) -> bool:
        return self.width_scale > 0

    @property
    def bonus_scale(self) -> float:
        return self.width_scale

    @property
    def unproven(self) -> str | None:
        if self.width_scale == 1:
            return None
        return f"width_scale = {self.width_scale:g}: a width that is scaled down is no guarantee of regret"


class GreedySpec(ContextualPolicySpec):
    """Greedy play by private estimates, without a bonus (GLB Algorithm 1 for single, 2 for multi).

    warm_up        multi: rounds at the beginning in which the arms take turns in public; a tenth of all rounds when
                   absent. Each arm has as many, so a remainder modulo K is not used.
    warm_up_share  multi: the same as a share of all rounds, to the nearest round, in place of `warm_up`.
    margin         multi: an arm that the warm-up's estimates put more than this below the best is not played for that
                   context. When absent, four times the largest slope of μ times a bound on the estimates' errors.
    """

    WIDTHS: ClassVar[tuple[str, ...]] = ()  # greedy play forms none

    warm_up: Annotated[int, Field(ge=1, le=10**9)] | None = None
    warm_up_share: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None, exclude_if=lambda share: share is None
    )
    margin: Margin | None = None

    @property
    def has_bonus(self) -> bool:
        return False

    @property
    def has_screen(self) -> bool:
        return self.parameters == "multi"

    def warm_up_length(self, horizon: int) -> int:
        """Return the rounds that a run file grants the warm-up, a tenth of all when it says nothing; 0 for single."""
        if self.parameters == "single":
            return 0
        rounds = horizon // self.batch
        if self.warm_up_share is not None:
            return round(self.warm_up_share * rounds)
        return rounds // WARM_UP_SHARE if self.warm_up is None else self.warm_up

    @override
    def public_arm(self, size: RoundSize) -> int | None:
        rounds = self.warm_up_length(size.horizon) // size.arms * size.arms
        return size.number % size.arms if size.number <= rounds else None

    @model_validator(mode="after")
    def _only_many_parameters_warm_up(self) -> Self:
        keys = ("warm_up", "warm_up_share", "margin")
        stated = [field for field in keys if getattr(self, field) is not None]
        if stated and self.parameters == "single":
            raise ValueError(f'{stated[0]} = {getattr(self, stated[0])}: goes with parameters = "multi"; leave it out')
        if stated[:2] == ["warm_up", "warm_up_share"]:
            raise ValueError(f"warm_up_share = {self.warm_up_share}: goes without warm_up = {self.warm_up}; give one")
        return self


class LdpOlsSpec(GreedySpec):
    """LDP-OLS: least squares on noisy sums, whose matrix is shifted by a bound on its noise.

    shift  noise: by the bound. none: not at all, the ablation.
    """

    POLICY: ClassVar[str] = "distrust.server.policies.contextual.glm_ols:LdpOls"
    PRINTED: ClassVar[NoiseSource | None] = "GLB"

    name: Literal["ldp-ols"]
    link: Literal["identity"] = "identity"
    shift: Literal["noise", "none"] = "noise"


class LdpSgdSpec(GreedySpec):
    """LDP-SGD: one step a round along a noisy gradient, then the projection to the ball of radius S.

    step        c'd/(κ_l p_*) of Theorem 3.1: the steps are step/(ζt), ζ the least slope of μ on [-1, 1]. When absent,
                by the curvature of contexts that are uniform on the sphere.
    theta_norm  S ≥ ‖θ*‖: GLB's C_B, as contexts of length C_B with ‖θ*‖ ≤ 1 are contexts of length 1 with ‖θ*‖ ≤ C_B.
    clip        length to which clients shorten longer gradients, below R, the longest that there is. Ψ's noise falls
                with it, and the gradients' mean is biased: GLB's published code has 1. R when absent.
    """

    POLICY: ClassVar[str] = "distrust.server.policies.contextual.glm_sgd:LdpSgd"
    MOMENTS: ClassVar[bool] = False

    name: Literal["ldp-sgd"]
    step: Step | None = None
    theta_norm: ThetaNorm = Field(default=1.0, exclude_if=lambda norm: norm == 1)
    clip: Annotated[float, Field(gt=0, le=1e6)] | None = Field(default=None, exclude_if=lambda clip: clip is None)

    @property
    def residual(self) -> Link:
        return self.link

    @property
    def largest_theta(self) -> float:
        return self.theta_norm

    @property
    def longest_gradient(self) -> float | None:
        return self.clip

    @property
    def unproven(self) -> str | None:
        if self.clip is None:
            return None
        return f"clip = {self.clip:g}: shortened gradients have a biased mean, for which no theorem bounds the regret"

    @model_validator(mode="after")
    def _numbers_of_theory_hold(self) -> Self:
        """Refuse defaults outside of what they are proven for, and a clip that shortens nothing."""
        whole = self.model_copy(update={"clip": None}).statistic(1, None)
        assert isinstance(whole, ContextualSum)
        if self.clip is not None and self.clip >= whole.factor:
            words = f"must be below {whole.factor:g}, the longest gradient; leave it out"
            raise ValueError(f"clip = {self.clip:g}: {words}")
        if self.clip is not None and self.parameters == "multi" and self.margin is None:
            raise ValueError(
                f"margin = None: its default is proven without clip, and clip = {self.clip:g}: give a number"
            )
        if self.theta_norm == 1 or self.link == "identity":
            return self  # else predictors reach S, where slopes are e^-S, and ζ is the least slope on [-1, 1]
        for field in ("step", *(("margin",) if self.parameters == "multi" else ())):
            if getattr(self, field) is None:
                words = f"its default is proven for theta_norm = 1, and theta_norm = {self.theta_norm:g}: give a number"
                raise ValueError(f"{field} = None: {words}")
        return self


class LdpUcbSpec(BonusSpec):
    """LDP-UCB (Zheng et al. 2020): LinUCB whose regularizer grows with the noise so far.

    The first batch's noise must keep the bounds already, and they are those of Gaussian noise, as of `local-gaussian`.
    """

    POLICY: ClassVar[str] = "distrust.server.policies.contextual.baselines:LdpUcb"
    PRINTED: ClassVar[NoiseSource | None] = "LDP-UCB"
    GAUSSIAN: ClassVar[bool] = True
    WIDTHS: ClassVar[tuple[str, ...]] = ("exact",)

    name: Literal["ldp-ucb"]
    link: Literal["identity"] = "identity"


class LdpGlocSpec(BonusSpec):
    """LDP-GLOC (Zheng et al. 2020, after Jun et al. 2017): a ridge estimate of an online learner's predictions.

    step        the online learner's steps are step/√T.
    theta_norm  S ≥ ‖θ*‖, to which the online learner projects; ζ is the least slope of μ on [-1, 1] for any S.
    """

    POLICY: ClassVar[str] = "distrust.server.policies.contextual.baselines:LdpGloc"
    PRINTED: ClassVar[NoiseSource | None] = "LDP-GLOC"
    WIDTHS: ClassVar[tuple[str, ...]] = ()  # they have an unnamed constant
    ANCHORED: ClassVar[bool] = True

    name: Literal["ldp-gloc"]
    step: Step = 1.0
    theta_norm: ThetaNorm = Field(default=1.0, exclude_if=lambda norm: norm == 1)

    @property
    def largest_theta(self) -> float:
        return self.theta_norm

    @property
    def residual(self) -> Link:
        return self.link
