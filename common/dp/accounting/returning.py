"""Computes what a client pays that is in several batches of a stream, and rounds a vector in each of them.

Which batches these are, and the vectors, may depend on all that was released and rounded before. The roundings still
count with little more than their means.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from distrust.common.dp.accounting.profile import RAISED
from distrust.common.dp.accounting.techniques.gaussian import gaussian_epsilon, steepest_slope
from distrust.common.dp.accounting.techniques.gaussian_vectors import BLUR, LATTICE, Move, lattice_epsilon
from distrust.common.dp.accounting.techniques.sensitivity import Grid

CHARGED_SHARE = 2.0**-10
"""Share of δ that all roundings together may add."""


class Weights(NamedTuple):
    """Weights of the batches of a client that comes back.

    Moves R_j of t batches move all that is released by S = Σ_ij a_ij R_i·R_j at most, squared, with a_ij ≥ 0.

    total    W(t), the largest Σ_ij a_ij.
    fullest  w, a bound on Σ_i a_ij for each j.
    added    at most W(t) - W(t - 1); above 0.
    """

    total: float
    fullest: float
    added: float


class Charges(NamedTuple):
    """Amounts that a client is charged, one at each rounding. At any time they pay for S of what is released by then.

    mean, spread  ln E[e^(rate · amounts)] ≤ rate · mean + rate² · spread, of all amounts; steps², steps⁴.
    least         steps². What is charged and not used before a rounding, and its mean amount, are at least this.
    """

    mean: float
    spread: float
    least: float

    def log_moment(self, rate: float) -> float:
        """Return the bound on ln E[e^(rate · amounts)]; rate ≥ 0, in 1/steps²."""
        return rate * self.mean + rate**2 * self.spread


def charged(grid: Grid, times: int, weights: Weights) -> tuple[Charges, ...]:
    """Return two ways to charge the roundings of a client of `times` batches; none where no vector is rounded.

    Which batches it is in, and its vectors, may depend on what was released and rounded before.
    """
    # 2 R_i·R_j ≤ |R_i|² + |R_j|². So S ≤ Σ_j w_j |R_j|² with w_j = Σ_i a_ij ≤ w and Σ w_j ≤ W(t), and so for what is
    # released by any time. Given what was before, |R_j|² = q + X with q ≤ m and E[e^(sX)] ≤ e^(s²c) for every s, of
    # variance 2c at most (`rounded_moments`). w_j may depend on what comes after X_j. Two ways to pay:
    # - w |R_j|² at rounding j. The means add up to t w m.
    # - W(t) m before the first batch, and w max(X_j, 0) at rounding j. Batches 1 … j - 1 use W(j - 1) m and the amounts
    #   of their roundings at most, so that (W(t) - W(t - 1)) m is left. Now e^max(y, 0) - max(y, 0) ≤ e^y - y for every
    #   y, and E[max(X, 0)] = E|X|/2 ≤ √(c/2). So E[e^(s max(X, 0))] ≤ s √(c/2) + e^(s²c) ≤ e^(s √(c/2) + s²c).
    if grid.is_box or not grid.rounded:
        return ()
    mean, spread = grid.rounded_moments
    total, fullest, added = weights
    spreads = times * fullest**2 * spread
    known = Charges(times * fullest * mean, spreads, fullest * mean)
    return known, Charges(total * mean + times * fullest * math.sqrt(spread / 2), spreads, added * mean)


@dataclass(frozen=True, slots=True)
class Visits:
    """Moves that a client of several batches makes in the nodes of a binary tree over a stream of batches.

    grid     a client's moves in one batch.
    batches  M. The nodes of level l are the ⌊M/2ˡ⌋ complete runs of 2ˡ batches.
    times    batches that the client is in, in [1, M].
    """

    grid: Grid
    batches: int
    times: int

    @property
    def weight(self) -> int:
        """Return the largest Σ k² over the nodes, a node having k of the client's batches.

        That is Σ_l (⌊t/2ˡ⌋ 4ˡ + r_l²), r_l = t mod 2ˡ, or 0 where the tree has no more than ⌊t/2ˡ⌋ nodes of level l.
        """
        # A level's nodes are disjoint, k ≤ 2ˡ in each and Σk ≤ t. Moving a batch from a node to another that has as
        # many only adds to Σk², so as many nodes as possible are full, and one more has the rest if there is one more.
        # The first t batches of the stream do this on every level at once: the sum over the levels is reached.
        total = 0
        for level in range(self.batches.bit_length()):
            full, rest = divmod(self.times, 1 << level)
            total += full << 2 * level
            if full < self.batches >> level:
                total += rest * rest
        return total

    @property
    def fullest(self) -> int:
        """Return the largest Σ k over the nodes that a batch is in, k of the client's batches being in a node."""
        return sum(min(1 << level, self.times) for level in range(self.batches.bit_length()))

    @property
    def dimension(self) -> int:
        """Return a bound on the number of coordinates that the client moves."""
        return self.times * self.batches.bit_length() * self.grid.dimension

    @property
    def charges(self) -> tuple[Charges, ...]:
        """Return what the client's roundings may be charged; nothing where no vector is rounded."""
        added = self.weight - replace(self, times=self.times - 1).weight
        return charged(self.grid, self.times, Weights(self.weight, self.fullest, added))

    @property
    def unrounded(self) -> int:
        """Return `squared_l2`: `rounded_log_delta` is for a move that no release comes before."""
        return self.squared_l2

    @property
    def squared_l2(self) -> int:
        """Return a bound on the squared ℓ₂ length, rounding included."""
        # k vectors of squared length S at most add up to one of k²S at most.
        return self.weight * self.grid.squared_l2

    def log_moment(self, rate: float) -> float:
        """Return a bound on ln E[e^(rate · S)], S the squared ℓ₂ length after rounding."""
        # A Rényi moment of moves that follow each other has this bound, too. A release that moves by √u multiplies it
        # by e^(rate · u) at most, and the amounts that were charged before pay for u.
        return min([rate * self.squared_l2, *(charge.log_moment(rate) for charge in self.charges)])


@dataclass(frozen=True, slots=True)
class Stretched:
    """Moves that a client makes in a stream behind a matrix: √weight times as long, and by `slack` longer still.

    grid     a client's moves in one batch.
    weight   the square of the stretching.
    slack    steps.
    weights  of a client of several batches, `times` of them; None of one batch.
    """

    grid: Grid
    weight: float
    slack: float
    times: int = 1
    weights: Weights | None = None

    @property
    def dimension(self) -> int:
        """Return the number of coordinates of one batch."""
        return self.grid.dimension

    @property
    def charges(self) -> tuple[Charges, ...]:
        """Return what the client's roundings may be charged, slack included; nothing for one batch."""
        if self.weights is None:
            return ()
        share, added = self._apart()
        return tuple(
            Charges(one.mean * (1 + share) + added, one.spread * (1 + share) ** 2, one.least * (1 + share))
            for one in charged(self.grid, self.times, self.weights)
        )

    @property
    def unrounded(self) -> float:
        """Return the squared ℓ₂ length before the rounding of the client's vector; in several batches after it."""
        return self.squared_l2 if self.weights is not None else self._longer(self.grid.unrounded)

    @property
    def squared_l2(self) -> float:
        """Return a bound on the squared ℓ₂ length, rounding included."""
        return self._longer(self.grid.squared_l2)

    def log_moment(self, rate: float) -> float:
        """Return a bound on ln E[e^(rate · S)], S the squared ℓ₂ length after rounding."""
        most = rate * self.squared_l2
        if self.weights is not None:
            return min([most, *(charge.log_moment(rate) for charge in self.charges)])
        share, added = self._apart()
        return min(most, self.grid.log_moment(rate * self.weight * (1 + share)) + rate * added)

    def _apart(self) -> tuple[float, float]:
        """Return h and a with (√(weight S) + slack)² ≤ (1 + h) weight S + a, equal at the largest S."""
        # (x + slack)² ≤ (1 + h) x² + (1 + 1/h) slack² for every h > 0, equal at h = slack/x.
        longest = math.sqrt(self.weight * self.grid.squared_l2)
        return self.slack / longest, self.slack**2 + self.slack * longest

    def _longer(self, squared: float) -> float:
        return (math.sqrt(self.weight * squared) + self.slack) ** 2


class Returning(Move, Protocol):
    """The moves of one client that comes back, `times` times, in grid steps."""

    @property
    def times(self) -> int:
        """Return how often the client rounds a vector of its own, at most."""
        ...

    @property
    def charges(self) -> tuple[Charges, ...]:
        """Return what its roundings may be charged, by `charged`."""
        ...


def returning_epsilon(move: Returning, variance: float, delta: float) -> float:
    """Return an ε at δ of N(0, variance) in reals for moves that follow each other; inf where none is proven."""
    # The uniform numbers of the roundings are the same for both inputs, and shown. H(S, l) is the hockey stick of a
    # Gaussian release that moves by √S deviations, at ε = l: what is left of ε after the losses so far. Claim: with S
    # charged and not used yet, and k roundings to come, no client has more than H(S + kz, l) + kη. It holds at the end,
    # as the amounts that were charged pay for all moves, and is passed on from there.
    # - A release that moves by √u takes u from S. The mean of H(S - u, ·) over its loss is H(S, l).
    # - A rounding adds an amount Z to S, with E[e^(rate Z)] ≤ e^(rate y + rate² c). Let z = y + cλ, λ being the largest
    #   d ln H/dS where H ≥ η, and S' = S + kz. For l ≥ 0 ln H is concave in S (`rounded_log_delta`). By the tangent at
    #   S', of slope λ', E[H(S' - z + Z, l)] ≤ H(S', l) e^(λ'(y - z) + λ'²c). Where H(S', l) ≥ η it is λ' ≤ λ, and this
    #   is H(S', l) at most. For a larger l the mean is no more than at the l with H(S', l) = η: no more than η.
    #   For l < 0 H(S, l) = 1 - e^l + e^l H(S, -l), so that e^l η is added at most.
    eta = CHARGED_SHARE * delta / move.times
    found = math.inf
    for mean, spread, least in move.charges:
        slope = steepest_slope(least / variance, eta)
        square = (mean + spread * slope / variance) / variance
        if math.isfinite(square):
            found = min(found, gaussian_epsilon(math.sqrt(square * RAISED), delta * (1 - CHARGED_SHARE)))
    return found


def returning_lattice_epsilon(move: Returning, variance: float, delta: float) -> float:
    """Return an ε at δ of N_Z(0, variance) on every coordinate; at most that of the worst roundings."""
    worst, blur = lattice_epsilon(move, variance, delta), move.dimension * BLUR
    if variance <= LATTICE:
        return worst
    # `lattice_log_delta` has the factors of discrete noise, one for each coordinate that moves.
    return min(worst, blur + returning_epsilon(move, variance - LATTICE, delta * math.exp(-blur)))
