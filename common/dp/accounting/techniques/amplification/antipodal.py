"""Evaluates the privacy of shuffled messages of antipodal randomizers, such as answers on a sphere.

An antipodal randomizer draws a pair of opposite messages ±u, by a law that does not depend on the input x, and sends u
with probability (1 + a)/2, else -u; a depends on u and x, and |a| ≤ τ = tanh(ε₀/2). Alone it is ε₀-private. In one
coordinate it is binary randomized response. With C ~ Bin(n - 1, γ), γ = 1 - τ = 2/(e^ε₀ + 1), shuffled messages of two
neighbouring inputs are at least as close as those of randomized response among C fair coins, C known:

    δ(ε) ≤ E (L_0 + … + L_C)₊ / (C + 1),  L_j = 1 - e^ε ± τ (1 + e^ε), with fair signs.

Source     ours, shuffling.md; Balle et al. 2019 for the blanket. The two counts are those of `clones.py`,
           with the chance 2/(e^ε₀ + 1) of a clone. General randomizers have no such chance (see there); here every
           law has γ in common with all others.
Holds      for every n ≥ 1, ε₀ > 0; one message a user. Pairs and a may differ from place to place, as with assigned
           actions, and the users are put on the places in a uniform order. δ > 0 only.
"""

import math
from functools import partial

from distrust.common.dp.accounting.techniques.amplification.clones import (
    DIGITS,
    clones_curve,
    clones_delta,
    clones_epsilon,
)
from distrust.common.dp.accounting.techniques.amplification.randomizers import LARGEST_LOCAL_EPSILON
from distrust.common.dp.accounting.techniques.searches import greatest_met

# Proof of the bound. Let ω be the law of ±u with a fair sign. Every input's law is at least γω, as 1 ± a ≥ γ. So each
# other user draws from ω with probability γ, whatever its input and its place. Show who does not, their places and
# their messages. What is left is C draws from ω, and the one user among them at a uniform place.
# Relative to draws from ω alone the two worlds have the densities Σ_j (1 + a_j)/(C + 1) and Σ_j (1 + b_j)/(C + 1),
# with a_j, b_j of the message at place j for the two inputs. δ(ε) is the expectation of the positive part of
# Σ_j L_j/(C + 1), L_j = 1 + a_j - e^ε (1 + b_j).
# Show the pairs, and leave the signs, which are fair: L_j is 1 - e^ε ± s with s = |a_j - e^ε b_j| ≤ τ (1 + e^ε). The
# wider two values are larger in convex order, for each j on its own; the positive part is convex. So the widest is the
# worst: a_j = τ, b_j = -τ.


def antipodal_chance(local_epsilon: float) -> float:
    """Return γ, the probability of a draw that says nothing of the input."""
    return 2 / (math.exp(local_epsilon) + 1)


antipodal_delta = partial(clones_delta, chance=antipodal_chance)
antipodal_epsilon = partial(clones_epsilon, chance=antipodal_chance)
antipodal_curve = partial(clones_curve, chance=antipodal_chance)
"""`clones_delta`, `clones_epsilon` and `clones_curve` with this chance of a clone."""


def antipodal_local_epsilon(epsilon: float, delta: float, users: int) -> float:
    """Return the greatest ε₀ whose shuffled messages are (ε, δ)-DP, rounded down; at least ε."""
    return greatest_met(
        lambda local: antipodal_delta(epsilon, local, users) <= delta, epsilon, LARGEST_LOCAL_EPSILON, DIGITS
    )
