"""Many copies of one mechanism side by side in one message: a cohort, or a call, that is many trials."""

from bisect import bisect_left
from typing import TypeVar

from pydantic import ValidationError

from distrust.common.errors import BadParameter
from distrust.common.mechanisms import Mechanism
from distrust.common.mechanisms.laplace_like import LaplaceLike

M = TypeVar("M", bound=Mechanism)


MOST = 64


def most_lanes(mechanism: Mechanism) -> int:
    """Copies that the mechanism allows in one message, up to `MOST`.

    Vectors in ℓ₁ and ℓ₂ balls are clamped as a whole, and the sphere has one answer for all coordinates: one copy.
    """
    if mechanism.joint or mechanism.norm != "linf":
        return 1
    more = range(2, MOST + 1)
    return 1 + bisect_left(more, True, key=lambda lanes: not _allowed(in_lanes(mechanism, lanes)))


def _allowed(mechanism: Mechanism) -> bool:
    try:
        type(mechanism).model_validate(mechanism.model_dump())
    except ValidationError:
        return False
    return True


def in_lanes(mechanism: M, lanes: int) -> M:
    """The mechanism whose vectors are `lanes` vectors of this one, every coordinate with the noise that it has here.

    What it calibrates itself to, all coordinates moving at once, is nobody's business here: the claim that an audit
    looks at is the original's. Raises BadParameter where coordinates have no noise of their own.
    """
    if lanes == 1:
        return mechanism
    if mechanism.joint:
        raise BadParameter("mechanism", mechanism.name, "has one answer for all coordinates: no lanes")
    own = {"dimension": mechanism.dimension * lanes, "norm": "linf", "wrap": min(mechanism.wrap * lanes, 0.5)}
    wide = mechanism.model_copy(update=own)
    if not isinstance(mechanism, LaplaceLike) or not isinstance(wide, LaplaceLike):
        return wide
    kept = getattr(wide, wide.scaled_by) * wide.scale / mechanism.scale  # the scale is by ε and dimension: keep it
    return wide.model_copy(update={wide.scaled_by: kept})
