"""`shuffled-laplace`: discrete Laplace noise at each client. The shuffler amplifies its weak local privacy.

The file begins with the privacy that shuffling gives such noise, and the largest local ε for a target.
"""

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field
from typing_extensions import override

from distrust.common.bandit.error_law import ErrorLaw
from distrust.common.dp.accounting.guarantee import OWN_DEVICE, SAMPLER, Guarantee, Model, records_assumptions
from distrust.common.dp.accounting.profile import LOCAL_NOTE, PROFILE_ORDERS, Privacy, Profile, bound, tightened
from distrust.common.dp.accounting.techniques.amplification.blanket import blanket_epsilon, hides_pairs, over_pairs
from distrust.common.dp.accounting.techniques.amplification.clones import (
    clones_epsilon,
    clones_local_epsilon,
    paper_local_epsilon,
)
from distrust.common.dp.accounting.techniques.amplification.randomizers import (
    FINEST_LAPLACE,
    LARGEST_LOCAL_EPSILON,
    LocalRandomizer,
    laplace_on_grid,
)
from distrust.common.dp.accounting.techniques.amplification.renyi import blanket_renyi, clones_renyi
from distrust.common.dp.accounting.techniques.searches import greatest_on_grid, snap_down
from distrust.common.dp.accounting.techniques.sensitivity import ROUNDING, laplace_scale
from distrust.common.dp.mechanisms.families.base import (
    EPSILONS,
    MechanismSpec,
    Need,
    needed,
    needed_delta,
)
from distrust.common.dp.mechanisms.families.cohort import CohortParams
from distrust.common.dp.mechanisms.families.laplace import LaplaceLike, little_rounding
from distrust.common.dp.noise.polya import DiscreteLaplace, PolyaDifference
from distrust.common.errors import BadParameter
from distrust.common.wire import Via

GAIN = 1.4
"""About the factor by which the blanket allows a larger ε₀ than the clones."""


@lru_cache(maxsize=256)
def scalar_epsilon(local_epsilon: float, precision: int, delta: float, honest: int, requested: float) -> float:
    """Return ε at δ of `honest` shuffled numbers with Lap_Z(g/ε₀), of assigned actions or not.

    It is the lesser of the clones bound and the blanket bound of the grid's ends.

    requested  the ε to return where it is met, without a search for less; 0: search.
    """
    clones = clones_epsilon(delta, local_epsilon, honest, requested=requested)
    if clones <= requested or not _has_blanket(precision, honest):
        return clones
    if requested > 0 and hides_pairs(_laplace_on_grid, precision, (requested, delta, honest), local_epsilon):
        return requested
    try:
        return min(clones, blanket_epsilon(_laplace_on_grid(local_epsilon, precision), delta, honest))
    except BadParameter:
        return clones


@lru_cache(maxsize=256)
def scalar_local_epsilon(epsilon: float, delta: float, honest: int, precision: int, clones: float) -> float:
    """Return the largest ε₀, as a snapped number, with `scalar_epsilon` ≤ ε; at least that of the clones bound."""
    if not _has_blanket(precision, honest):
        return clones
    target = (epsilon, delta, honest)
    if hides_pairs(_laplace_on_grid, precision, target, LARGEST_LOCAL_EPSILON):
        return LARGEST_LOCAL_EPSILON
    guess = min(GAIN * clones, LARGEST_LOCAL_EPSILON)
    return max(clones, over_pairs(_laplace_on_grid, precision, target, greatest_on_grid, guess))


@lru_cache(maxsize=256)
def scalar_renyi(local_epsilon: float, precision: int, honest: int) -> tuple[float, ...]:
    """Return the Rényi divergences of shuffled numbers with Lap_Z(g/ε₀), of assigned actions or not.

    They are the lesser of the clones' and the blanket's at every order of a profile.
    """
    clones = clones_renyi(local_epsilon, honest, PROFILE_ORDERS)
    if not _has_blanket(precision, honest):
        return clones
    rho = local_epsilon**2 / 2  # of any ε₀-private message (Bun & Steinke 2016)
    randomizer = laplace_on_grid(laplace_scale(local_epsilon, precision, 1), precision)
    result = blanket_renyi(randomizer, honest, rho, PROFILE_ORDERS, local_epsilon)
    return tuple(min(pair) for pair in zip(clones, result, strict=True))


@lru_cache(maxsize=4)
def _laplace_on_grid(local_epsilon: float, precision: int) -> LocalRandomizer:
    return laplace_on_grid(laplace_scale(min(local_epsilon, LARGEST_LOCAL_EPSILON), precision, 1), precision)


def _has_blanket(precision: int, honest: int) -> bool:
    return precision <= FINEST_LAPLACE and honest > 1


class ShuffledLaplace(LaplaceLike):
    """Each client adds Lap_Z of ε₀ to its vector. ε₀ is the largest that t shuffled messages amplify to (ε, δ).

    local      ε₀ ≥ ε. paper: f⁻¹(ε) of the closed form inside its range, else ε. exact: the largest by the clones
               bound, or by the privacy blanket, which is computed for one coordinate and gives more there.
    dealt      whether the shuffler assigns the actions. Sums may then be opened action by action: place j of the
               permuted list plays a public action. Both bounds hold then, with the whole cohort, as all places have
               noise of one law and users are put on the places in a uniform order (`laplace_on_grid`).
    Guarantee  (ε, δ) for the permuted messages of t honest clients; (ε₀, 0) for each message in any case.
    Source     FREE Algorithm 3, equation (10), with its range and max(ε, f⁻¹(ε)). Feldman, McMillan & Talwar 2021,
               Theorem 3.1, for randomizers that differ from place to place. Balle et al. 2019 for the blanket, and
               docs/concepts/privacy/shuffling.md for messages about other inputs at each place.
    """

    model: ClassVar[Model] = "shuffle"
    vias: ClassVar[tuple[Via, ...]] = ("shuffler",)
    parts: ClassVar[bool] = True
    takes_delta: ClassVar[Need | None] = "needed"
    scaled_by: ClassVar[str] = "local"
    searched: ClassVar[frozenset[str]] = frozenset({"local"})
    letters: ClassVar[Mapping[str, str]] = {"local": "local epsilon"}

    name: Literal["shuffled-laplace"] = "shuffled-laplace"
    delta: float
    local: Annotated[
        float, Field(ge=EPSILONS[0], le=EPSILONS[1], description="ε₀ in nats: what a message alone promises")
    ]
    dealt: Annotated[
        bool, Field(description="whether the shuffler assigns actions, and opens what was played of each")
    ] = False

    @classmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        epsilon, delta = needed(spec), needed_delta(spec)
        local = epsilon
        if cohort.min_honest > 1:
            amplify = paper_local_epsilon if spec.calibration == "paper" else clones_local_epsilon
            local = max(epsilon, snap_down(amplify(epsilon, delta, cohort.min_honest)))
        scalar = cohort.dimension == 1 and spec.calibration == "exact" and cohort.min_honest > 1
        about = GAIN * local if scalar else local
        precision = spec.precision or little_rounding(cohort, about, cohort.clients, ROUNDING)
        if scalar:
            local = scalar_local_epsilon(epsilon, delta, cohort.min_honest, precision, local)
        local = cohort.searched("local", local)
        total = PolyaDifference(
            Fraction(cohort.clients), laplace_scale(local, precision, cohort.dimension, cohort.norm)
        )
        return cls(
            **cohort.shared(precision, cohort.room(precision, total)),
            epsilon=epsilon,
            delta=delta,
            local=local,
            dealt=cohort.assigned,
        )

    @property
    def scale(self) -> float:
        """Return the scale of a client's discrete Laplace law, in grid steps."""
        return laplace_scale(self.local, self.precision, self.dimension, self.norm)

    @property
    def divisible(self) -> bool:
        return self.dealt

    def client_law(self) -> DiscreteLaplace:
        return DiscreteLaplace(self.scale)

    @override
    def privacy(self, survivors: int | None = None, colluders: int = 0) -> Privacy:
        honest = max(1, self.honest(survivors, colluders))
        local = self.one_term_epsilon

        def promise() -> Guarantee:
            epsilon = self._amplified(self.delta, honest)
            assumptions = (*records_assumptions(honest), SAMPLER)
            if epsilon < local:
                return self.make_guarantee("approximate", epsilon, assumptions, delta=self.delta)
            return self.make_guarantee("pure", epsilon, assumptions).model_copy(update={"model": "local"})

        def profile(delta: float) -> Profile:
            alone = self.one_term_privacy(OWN_DEVICE).profile(delta)  # one message bounds them all
            if self.dimension == 1:
                together = scalar_renyi(self.local, self.precision, honest)
            else:
                together = clones_renyi(local, honest, PROFILE_ORDERS)
            change = {"pure": bound(alone.pure.epsilon), "approximate": bound(self._amplified(delta, honest))}
            by_order = {"rdp": tightened(alone.rdp, together), "rdp_how": "bound"}
            return alone.model_copy(update={**change, **by_order, "notes": (LOCAL_NOTE,)})

        return Privacy(compute_promise=promise, compute_profile=profile)

    def _amplified(self, delta: float, honest: int) -> float:
        """Return ε at δ of the messages of `honest` clients; one message's own where they hide no more."""
        local = self.one_term_epsilon
        if honest == 1:
            return local
        requested = self.epsilon if self.calibration == "exact" and honest >= self.floor else 0.0
        if self.dimension == 1:
            return scalar_epsilon(self.local, self.precision, delta, honest, requested)
        return clones_epsilon(delta, local, honest, requested=requested)

    def error(self, survivors: int) -> ErrorLaw:
        return self.scaled(PolyaDifference(Fraction(survivors), self.scale), survivors)
