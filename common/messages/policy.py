"""The `[policy]` table of a run file: which policy, and its own numbers. `name` decides; it may be left out."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from common.actions import ActionSpec
from common.messages.base import Message
from common.statistics.bounded_reward import Bound

DEFAULT = "successive-elimination"


Failure = Annotated[float, Field(gt=0, lt=1, description="p: probability that a confidence interval fails")]
FirstBatch = Annotated[int, Field(ge=1, le=30)]


class SuccessiveEliminationSpec(Message):
    """Successive elimination in batches of base^b clients an arm, from b = `first_batch` on (MAB Algorithm 1).

    base       2 when absent (MAB Remark 4 allows 4), or 4 with the published code's constants.
    constants  absent: the theorem's, by the mechanism's calibration. published-code: Lemma 2 as the authors' code has
               it, with p in every event, which goes with the `paper` calibration.
    """

    EVERY_ARM: ClassVar[bool] = True  # the horizon must serve each arm at least once

    name: Literal["successive-elimination"] = "successive-elimination"
    first_batch: FirstBatch = 1
    failure: Failure = 0.1
    base: Literal[2, 4] | None = None
    constants: Literal["published-code"] | None = None

    @property
    def growth(self) -> int:
        """The base that is meant."""
        return self.base or (2 if self.constants is None else 4)


class DpSeSpec(Message):
    """DP-SE: epochs that look for gaps of 1/2, 1/4, … (Sajed & Sheffet 2019); lengths follow the mechanism's ε."""

    EVERY_ARM: ClassVar[bool] = True

    name: Literal["dp-se"]
    failure: Failure = 0.1


class VbSdpAeSpec(Message):
    """VB-SDP-AE: batches of 2^b clients an arm, estimates from all past data (Tenenbaum et al. 2021)."""

    EVERY_ARM: ClassVar[bool] = True

    name: Literal["vb-sdp-ae"]
    first_batch: FirstBatch = 1
    failure: Failure = 0.1


class Ucb1Spec(Message):
    """UCB1, one client a round (Auer et al. 2002): it insists on the mechanism `identity`."""

    EVERY_ARM: ClassVar[bool] = True

    name: Literal["ucb1"]


class LinearSpec(Message):
    """What all policies for linear bandits are told.

    actions    the action set; a run file leaves it out, and the environment's is filled in.
    bound      B: rewards lie in [-B, B].
    beta       β: probability that one event fails (an action's sampling error, its noise, a wrapped sum) in one phase;
               the paper's when absent: 1/(kT), or 1/(4kT²) for `almost-free`.
    """

    EVERY_ARM: ClassVar[bool] = False

    actions: ActionSpec
    bound: Bound = 1.0
    beta: Annotated[float, Field(gt=0, lt=1)] | None = None


class DpDpeSpec(LinearSpec):
    """Distributed phased elimination: ⌈2^{αl}⌉ clients play phase l side by side (DLB Algorithm 1).

    deviation  σ: standard deviation (sub-Gaussian) of a client's ⟨θ_u - θ*, x⟩ for ‖x‖ ≤ 1.
    noise      R: that of a single local reward around ⟨θ_u, x⟩.
    clients    a fixed number of clients a phase: DPE-FixedU; 2^{αl} when absent.
    """

    name: Literal["dp-dpe"]
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.8
    deviation: Annotated[float, Field(ge=0, le=1e6)] = 0.1
    noise: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    clients: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    bound: Bound = 1.5


class DpPeSpec(LinearSpec):
    """Phased elimination, one reward a client, one cohort a design action (DLB Algorithm 3).

    `phased-elimination` is the same without privacy: it insists on the mechanism `identity`.
    """

    name: Literal["dp-pe", "phased-elimination"]


class AlmostFreeSpec(LinearSpec):
    """Batches of length about qⁱ, i = 1 … ln T - 1, q = (2T)^{1/ln T}; then the best action (FREE Algorithms 1-3).

    model     central and local: one cohort for each action. shuffled: one cohort of all, whose actions are shuffled
              before they are played. Also the formula of the `paper` widths.
    core_set  off: every active action is played (the ablation).
    """

    name: Literal["almost-free"]
    model: Literal["central", "local", "shuffled"] = "central"
    core_set: bool = True


AnyPolicySpec = SuccessiveEliminationSpec | DpSeSpec | VbSdpAeSpec | Ucb1Spec | DpDpeSpec | DpPeSpec | AlmostFreeSpec
AnyLinearSpec = DpDpeSpec | DpPeSpec | AlmostFreeSpec


def _name(value: Any) -> str | None:
    """The name that picks the spec; a table without one is successive elimination."""
    name = value.get("name", DEFAULT) if isinstance(value, dict) else getattr(value, "name", None)
    return None if name is None else str(name)


PolicySpec = Annotated[
    Annotated[SuccessiveEliminationSpec, Tag("successive-elimination")]
    | Annotated[DpSeSpec, Tag("dp-se")]
    | Annotated[VbSdpAeSpec, Tag("vb-sdp-ae")]
    | Annotated[Ucb1Spec, Tag("ucb1")]
    | Annotated[DpDpeSpec, Tag("dp-dpe")]
    | Annotated[DpPeSpec, Tag("dp-pe")]
    | Annotated[DpPeSpec, Tag("phased-elimination")]
    | Annotated[AlmostFreeSpec, Tag("almost-free")],
    Discriminator(_name),
]
"""The policy of a run, told apart by its name."""
