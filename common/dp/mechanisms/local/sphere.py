"""`local-sphere`: each client sends a random point on a sphere in place of its vector: pure privacy for ℓ₂ balls."""

from typing import ClassVar, Literal, Self

from typing_extensions import override

from distrust.common.bandit.error_law import How
from distrust.common.dp.accounting.guarantee import Model
from distrust.common.dp.accounting.profile import Privacy, of_pure
from distrust.common.dp.mechanisms.families.base import MechanismSpec, needed
from distrust.common.dp.mechanisms.families.cohort import CohortParams
from distrust.common.dp.mechanisms.families.sphere import UNIFORM, Blocks, SphereLike, sphere_fields
from distrust.common.wire import Via

OWN_ANSWER = "each client's own device draws its answer"
"""The assumption of an answer that counts on no other party."""


class LocalSphere(SphereLike):
    """Each client sends a random point of a sphere, and trusts no other party.

    Guarantee  (ε, 0) for every single message, against every party that reads it; ε is that of the coin as it is drawn.
               Two opposite longest vectors have it exactly.
    Blocks     The message is ε-DP all the same, for what is in the block and for which one it is. Let τ = tanh(ε/2).
               Densities of answers lie in 1 ± τ times the uniform one, so that
                   Ψ(x)Ψ(0) over Ψ(0)Ψ(x') is at most (1 + τ)/(1 - τ) = e^ε.
    Exactness  A direction is uniform up to floating point, on which accuracy rests. A pair of opposite points has one
               density to the last bit, and only the coin tells the two apart. So ε holds for the points as computed.
    Grid       An answer is rounded to the grid after the coin has chosen it, which costs no privacy.
    Utility    the radius, and with it the deviation, is 1/tanh(ε/2) times that of points on x's own half of the sphere.
               For a large ε the two are alike, and for a small one the noise is 2/ε times as long.
    Calibration  The theorem is tight: `paper` and `exact` are the same.
    Source     GLB Lemma 2.2, for one block and for several (Algorithm 2);
               Duchi, Jordan & Wainwright 2018.
    """

    model: ClassVar[Model] = "local"
    vias: ClassVar[tuple[Via, ...]] = ("shuffler", "aggregator")

    name: Literal["local-sphere"] = "local-sphere"
    epsilon: float
    blocks: Blocks = 1

    @classmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        return cls(**sphere_fields(spec, cohort), epsilon=needed(spec), blocks=cohort.blocks)

    @property
    def answer_epsilon(self) -> float:
        return self.epsilon

    @override
    def privacy(self, survivors: int | None = None, colluders: int = 0) -> Privacy:
        epsilon = self.drawn_epsilon
        # Two opposite longest vectors give randomized response; rounding to the grid may blur which half it was.
        how: How = "exact" if self.size == 1 else "bound"
        return Privacy(
            compute_promise=lambda: self.make_guarantee("pure", epsilon, (OWN_ANSWER, UNIFORM)),
            compute_profile=lambda delta: of_pure(epsilon, delta, how),
        )
