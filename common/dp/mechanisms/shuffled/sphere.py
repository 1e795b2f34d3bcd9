"""`shuffled-sphere`: random points on a sphere, permuted by a shuffler that amplifies their weak local privacy."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field
from typing_extensions import override

from distrust.common.bandit.error_law import Calibration
from distrust.common.dp.accounting.guarantee import Guarantee, Model, records_assumptions
from distrust.common.dp.accounting.profile import (
    LOCAL_NOTE,
    PROFILE_ORDERS,
    Privacy,
    Profile,
    bound,
    of_pure,
    tightened,
)
from distrust.common.dp.accounting.techniques.amplification.clones import antipodal_epsilon, antipodal_local_epsilon
from distrust.common.dp.accounting.techniques.amplification.renyi import antipodal_renyi
from distrust.common.dp.accounting.techniques.searches import snap_down
from distrust.common.dp.mechanisms.families.base import (
    EPSILONS,
    MechanismSpec,
    Need,
    needed,
    needed_delta,
)
from distrust.common.dp.mechanisms.families.cohort import CohortParams
from distrust.common.dp.mechanisms.families.sphere import UNIFORM, Blocks, SphereLike, sphere_fields
from distrust.common.errors import BadParameter
from distrust.common.wire import Via


class ShuffledSphere(SphereLike):
    """Each client sends a random point of a sphere. ε₀ of a point is the largest that t of them amplify to (ε, δ).

    local      ε₀ ≥ ε, by the privacy of binary randomized response among fair coins: opposite vectors are the worst.
    Guarantee  (ε, δ) for the permuted messages of t honest clients; (ε₀, 0) for each message in any case. Sums may be
               opened action by action where the shuffler assigns the actions: the bound lets answers differ by place.
    Raises     BadParameter for `paper`: no paper here has it.
    Source     the points are GLB Lemma 2.2's; the bound and its proof are ours, docs/concepts/privacy/shuffling.md.
    """

    model: ClassVar[Model] = "shuffle"
    vias: ClassVar[tuple[Via, ...]] = ("shuffler",)
    calibrations: ClassVar[tuple[Calibration, ...]] = ("exact",)
    parts: ClassVar[bool] = True
    takes_delta: ClassVar[Need | None] = "needed"
    searched: ClassVar[frozenset[str]] = frozenset({"local"})
    letters: ClassVar[Mapping[str, str]] = {**SphereLike.letters, "local": "local epsilon"}

    name: Literal["shuffled-sphere"] = "shuffled-sphere"
    epsilon: Annotated[float, Field(description="ε in nats, for one client's whole vector")]
    delta: float
    local: Annotated[
        float, Field(ge=EPSILONS[0], le=EPSILONS[1], description="ε₀ in nats: what a message alone promises")
    ]
    blocks: Blocks = 1

    @classmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        if spec.calibration == "paper":
            raise BadParameter("mechanism.calibration", "paper", "must be exact: no paper here has this mechanism")
        epsilon, delta = needed(spec), needed_delta(spec)
        local = epsilon
        if cohort.min_honest > 1:
            local = max(epsilon, snap_down(antipodal_local_epsilon(epsilon, delta, cohort.min_honest)))
        return cls(
            **sphere_fields(spec, cohort),
            epsilon=epsilon,
            delta=delta,
            local=cohort.searched("local", local),
            blocks=cohort.blocks,
        )

    @property
    def answer_epsilon(self) -> float:
        return self.local

    @override
    def privacy(self, survivors: int | None = None, colluders: int = 0) -> Privacy:
        honest = max(1, self.honest(survivors, colluders))
        local = self.drawn_epsilon

        def amplified(delta: float) -> float:
            return antipodal_epsilon(delta, local, honest, requested=self.epsilon)

        def promise() -> Guarantee:
            epsilon = amplified(self.delta) if honest > 1 else local
            assumptions = (*records_assumptions(honest), UNIFORM)
            if epsilon < local:
                return self.make_guarantee("approximate", epsilon, assumptions, delta=self.delta)
            return self.make_guarantee("pure", local, assumptions).model_copy(update={"model": "local"})

        def profile(delta: float) -> Profile:
            alone = of_pure(local, delta, "bound", LOCAL_NOTE)  # one message bounds them all
            together = antipodal_renyi(local, honest, PROFILE_ORDERS)
            change = {"approximate": bound(amplified(delta)), "rdp": tightened(alone.rdp, together)}
            return alone.model_copy(update=change)

        return Privacy(compute_promise=promise, compute_profile=profile)
