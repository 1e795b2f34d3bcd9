"""Defines the `[policy]` table of a run file: the policy's name and its numbers.

Without a name it is `successive-elimination`.

To add a policy: write its spec here, add a line to `SPECS`, and write the class that plays it
(`distrust.server.policies.base.Policy`).
"""

import typing
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union

from pydantic import Discriminator, Field, Tag
from typing_extensions import override

from distrust.common.bandit.actions import ActionSpec
from distrust.common.bandit.statistics import Bound
from distrust.common.catalogue import Catalogue, OnTheWire, subclass_of
from distrust.common.errors import BadParameter
from distrust.common.extensions import REFERENCE
from distrust.common.specs.base import (
    LEAST_BETA,
    MOST_ROUNDS,
    NO_EVENT,
    Failure,
    FirstBatch,
    PolicySpec,
    RoundSize,
    WholeRunSpec,
    event_share,
)
from distrust.common.specs.contextual import Batch, LdpGlocSpec, LdpOlsSpec, LdpSgdSpec, LdpUcbSpec
from distrust.common.specs.linucb import LinUcbSpec, SblbSpec
from distrust.common.specs.thompson import GlocThompsonSpec, LinearThompsonSpec, ThompsonSpec
from distrust.common.wire import LARGEST_COHORT

DEFAULT_POLICY = "successive-elimination"


class SuccessiveEliminationSpec(PolicySpec):
    """Successive elimination in batches of base^b clients an arm, from b = `first_batch` on (MAB Algorithm 1).

    base       2 when absent (MAB Remark 4 allows 4), or 4 with the published code's constants.
    constants  absent: the theorem's, by the mechanism's calibration. published-code: Lemma 2 as the authors' code has
               it, with p in every event, which goes with the `paper` calibration.
    """

    POLICY: ClassVar[str] = "distrust.server.policies.elimination:SuccessiveElimination"

    name: Literal["successive-elimination"] = "successive-elimination"
    first_batch: FirstBatch = 1
    failure: Failure = 0.1
    base: Literal[2, 4] | None = None
    constants: Literal["published-code"] | None = None

    @property
    def growth(self) -> int:
        """Return the base of the batches: the run file's, else 2, or 4 with the published code's constants."""
        return self.base or (2 if self.constants is None else 4)

    def event_probability(self, size: RoundSize) -> float:
        if self.constants is not None:
            return self.failure
        return event_share(size.active, self.first_batch + size.number - 1, self.failure)

    @property
    def longest(self) -> int:
        # A batch of the last arm comes after one of two arms: (2/base + 1) of it.
        return LARGEST_COHORT + 2 * LARGEST_COHORT // self.growth

    @property
    @override
    def unproven(self) -> str | None:
        if self.constants is None:
            return None
        return 'constants = "published-code": p is that of each single event, and none is stated for all together'

    def check_calibration(self, calibration: str) -> None:
        if self.constants is not None and calibration != "paper":
            raise BadParameter("policy.constants", "published-code", 'goes with mechanism.calibration = "paper"')

    @override
    def stated_failure(self, calibration: str, events: Iterable[tuple[float, int]]) -> float | None:
        """Return p, or for the `paper` radii the 3p of MAB Lemma 2.

        None for the published code's constants, whose events sum to more than any of its numbers.
        """
        if self.constants is not None:
            return None
        return min(1.0, (3 if calibration == "paper" else 1) * self.failure)


class DpSeSpec(WholeRunSpec):
    """DP-SE: epochs that look for gaps of 1/2, 1/4, … (Sajed & Sheffet 2019); lengths follow the mechanism's ε."""

    POLICY: ClassVar[str] = "distrust.server.policies.elimination:DpSe"

    name: Literal["dp-se"]
    failure: Failure = 0.1

    def event_probability(self, size: RoundSize) -> float:
        each = event_share(size.active, size.number, self.failure)
        return each / 2 if size.calibration == "paper" else each  # what the paper's own events leave of p


class VbSdpAeSpec(WholeRunSpec):
    """VB-SDP-AE: batches of 2^b clients an arm, estimates from all past data (Tenenbaum et al. 2021)."""

    POLICY: ClassVar[str] = "distrust.server.policies.vb_sdp_ae:VbSdpAe"

    name: Literal["vb-sdp-ae"]
    first_batch: FirstBatch = 1
    failure: Failure = 0.1

    def event_probability(self, size: RoundSize) -> float:
        return event_share(size.arms, self.first_batch + size.number - 1, self.failure)


class Ucb1Spec(PolicySpec):
    """UCB1, one client a round (Auer et al. 2002): it insists on the mechanism `identity`."""

    POLICY: ClassVar[str] = "distrust.server.policies.ucb1:Ucb1"
    SEQUENTIAL: ClassVar[bool] = True

    name: Literal["ucb1"]

    def event_probability(self, size: RoundSize) -> float:
        del size
        return NO_EVENT

    @property
    def insists_on_no_privacy(self) -> str:
        return "a baseline without privacy, which sees every client's reward: identity; other policies take the others"

    @property
    def longest(self) -> int:
        return MOST_ROUNDS + 1


class AdapUcbSpec(WholeRunSpec):
    """AdaP-UCB: UCB on private means of one arm at a time, whose episodes double (Azize & Basu 2022).

    alpha        α: after t - 1 clients sampling error and noise pass their parts of a bound with probability t^-α each.
    first_batch  the first cohort of each arm has 2^first_batch clients.
    """

    POLICY: ClassVar[str] = "distrust.server.policies.private_ucb:AdapUcb"

    name: Literal["adap-ucb"]
    alpha: Annotated[float, Field(gt=3, le=100)] = 3.1
    first_batch: Annotated[int, Field(ge=1, le=30)] = 1
    failure: Failure = 0.1

    def event_probability(self, size: RoundSize) -> float:
        # Round 1 has a cohort for each arm, and every later one has a single cohort.
        return event_share(size.arms if size.number == 1 else 1, size.number, self.failure)


class DpUcbSpec(WholeRunSpec):
    """DP-UCB: UCB on prefix sums of a stream of batches an arm (Mishra & Thakurta 2015).

    alpha  α: after t clients sampling error and noise pass their parts of a bound with probability t^-α each.
    """

    POLICY: ClassVar[str] = "distrust.server.policies.private_ucb:DpUcb"
    SEQUENTIAL: ClassVar[bool] = True

    name: Literal["dp-ucb"]
    batch: Batch = 1
    alpha: Annotated[float, Field(gt=2, le=100)] = 4.0
    failure: Failure = 0.1

    @property
    def sequential(self) -> bool:
        return self.batch == 1

    @property
    @override
    def insists_on_stream(self) -> str:
        return "counts a stream an arm: tree, prefix-factorization, or identity without privacy; adap-ucb takes others"

    def event_probability(self, size: RoundSize) -> float:
        rounds = max(1, size.horizon // self.batch)  # as many sums may be of one arm
        return event_share(size.arms * rounds, 1, self.failure)

    @property
    def longest(self) -> int:
        return self.batch * MOST_ROUNDS + 1


class LinearPolicySpec(PolicySpec):
    """Numbers that all policies for linear bandits have.

    actions    the action set; a run file leaves it out, and the environment's is filled in.
    bound      B: rewards lie in [-B, B].
    beta       β: probability that one event fails (an action's sampling error, its noise, a wrapped sum) in one phase;
               the paper's when absent: 1/(kT), or 1/(4kT²) for `almost-free`.
    """

    REWARDS: ClassVar[Literal["arms", "linear", "contextual"]] = "linear"
    EVERY_ARM: ClassVar[bool] = False
    STATISTIC: ClassVar[str] = "bounded-reward"
    COUNTS: ClassVar[bool] = True

    actions: ActionSpec
    bound: Bound = 1.0
    beta: Annotated[float, Field(gt=0, lt=1)] | None = None

    def event_probability(self, size: RoundSize) -> float:
        if self.beta is not None:
            return self.beta
        plain = 1 / (size.arms * size.horizon)
        return max(plain, LEAST_BETA) if size.calibration == "exact" else self._printed_beta(plain, size.horizon)

    def _printed_beta(self, plain: float, horizon: int) -> float:
        """Return the paper's β, given 1/(kT)."""
        del horizon
        return plain

    @override
    def stated_failure(self, calibration: str, events: Iterable[tuple[float, int]]) -> float | None:
        """Return the sum over the phases that were played: an interval has two events, a sum may wrap around."""
        return min(1.0, sum(each * count for each, count in events))


class DpDpeSpec(LinearPolicySpec):
    """Distributed phased elimination: ⌈2^{αl}⌉ clients play phase l side by side (DLB Algorithm 1).

    alpha      α: phase l has ⌈2^{αl}⌉ clients.
    deviation  σ: standard deviation (sub-Gaussian) of a client's ⟨θ_u - θ*, x⟩ for ‖x‖ ≤ 1.
    noise      R: that of a single local reward around ⟨θ_u, x⟩.
    clients    a fixed number of clients a phase: DPE-FixedU; 2^{αl} when absent.
    """

    POLICY: ClassVar[str] = "distrust.server.policies.linear.dp_dpe:DistributedPhasedElimination"
    STATISTIC: ClassVar[str] = "action-means"

    name: Literal["dp-dpe"]
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.8
    deviation: Annotated[float, Field(ge=0, le=1e6)] = 0.1
    noise: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    clients: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    bound: Bound = 1.5

    @property
    def decisions(self) -> tuple[str, ...]:
        return ("play-design",)


class DpPeSpec(LinearPolicySpec):
    """Phased elimination, one reward a client, one cohort a design action (DLB Algorithm 3).

    `phased-elimination` is the same without privacy: it insists on the mechanism `identity`.
    """

    POLICY: ClassVar[str] = "distrust.server.policies.linear.phases:PrivatePhasedElimination"

    name: Literal["dp-pe", "phased-elimination"]

    @property
    def insists_on_no_privacy(self) -> str | None:
        public = self.name == "phased-elimination"
        return "the baseline without privacy: identity; dp-pe takes the others" if public else None


class AlmostFreeSpec(LinearPolicySpec):
    """Batches that grow by q = (2T)^{1/ln T}, i = 1 … ln T - 1; then the best action (FREE Algorithms 1-3).

    Lengths are qⁱ with the `paper` calibration, q^{i-1+f} with the `exact` one, f the fractional part of ln T.

    model     central and local: one cohort for each action. shuffled: one cohort of all, whose actions are shuffled
              before they are played. Also the formula of the `paper` widths.
    core_set  off: every active action is played (the ablation).
    """

    POLICY: ClassVar[str] = "distrust.server.policies.linear.almost_free:AlmostFree"

    name: Literal["almost-free"]
    model: Literal["central", "local", "shuffled"] = "central"
    core_set: bool = True

    @property
    def decisions(self) -> tuple[str, ...]:
        return ("assigned-action",) if self.model == "shuffled" else ("assigned-arm",)

    def _printed_beta(self, plain: float, horizon: int) -> float:
        return plain / (4 * horizon)  # makes FREE's logarithm ln(4|A|T²)

    @property
    def longest(self) -> int:
        # Shuffled: all actions in one cohort, 2T/q plays, one more for each, q ≥ e.
        return LARGEST_COHORT if self.model == "shuffled" else super().longest


SPECS: tuple[type[PolicySpec], ...] = (
    SuccessiveEliminationSpec,
    DpSeSpec,
    VbSdpAeSpec,
    Ucb1Spec,
    AdapUcbSpec,
    DpUcbSpec,
    DpDpeSpec,
    DpPeSpec,
    AlmostFreeSpec,
    LinUcbSpec,
    SblbSpec,
    LdpOlsSpec,
    LdpSgdSpec,
    LdpUcbSpec,
    LdpGlocSpec,
    ThompsonSpec,
    LinearThompsonSpec,
    GlocThompsonSpec,
)
"""The list of policies. Names, the type on the wire and every check follow from it."""


def _complaint(candidate: object) -> str | None:
    missing = subclass_of(PolicySpec, candidate)
    if missing is None and not REFERENCE.fullmatch(str(getattr(candidate, "POLICY", ""))):
        return "it needs POLICY, the class that plays it, as `module:Name`"
    if missing is None and getattr(candidate, "__abstractmethods__", None):
        return (
            "it needs event_probability(size), the probability that a round grants each event: clients check p' by it"
        )
    return missing


POLICIES: Catalogue[type[PolicySpec]] = Catalogue("policy", "policies", _complaint)
POLICIES.register({name: spec for spec in SPECS for name in typing.get_args(spec.model_fields["name"].annotation)})


def _name(value: Any) -> str | None:
    """Return the name that picks the spec; a table without one is successive elimination."""
    name = value.get("name", DEFAULT_POLICY) if isinstance(value, dict) else getattr(value, "name", None)
    return None if name is None else str(name)


if TYPE_CHECKING:
    AnyPolicySpec = Annotated[PolicySpec, "one of SPECS"]
else:
    AnyPolicySpec = Annotated[
        Union[tuple(Annotated[spec, Tag(name)] for name, spec in POLICIES.items())],  # noqa: UP007 - `|` takes no tuple
        Discriminator(_name),
        OnTheWire(POLICIES),
    ]
    """The policy of a run, told apart by its name."""
