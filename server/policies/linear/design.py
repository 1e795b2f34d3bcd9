"""Computes near-G-optimal designs: few actions and their frequencies, which estimate every action's value well."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distrust.common.bandit.actions import RANK, check_actions
from distrust.common.errors import BadParameter

Vectors = NDArray[np.float64]

STEPS = 20_000  # of Frank and Wolfe's method at most
LEVERAGE = 1e-9  # an action of leverage π(x)‖x‖² (in V⁻¹) this near 1 cannot be left out: the others span less


@dataclass(frozen=True, slots=True)
class ActionDesign:
    """A distribution π over actions.

    support  indices of the actions, ascending.
    weights  π on them, positive, Σ = 1.
    rank     m, the dimension of the span of all actions.
    spread   g(π) = max over all actions x of ‖x‖² in the norm of V(π)⁻¹, V(π) = Σ π(x) x xᵀ; in the span.
    """

    support: tuple[int, ...]
    weights: Vectors
    rank: int
    spread: float


def support_bound(rank: int) -> int:
    """Return 4m ln ln m + 16 (DLB Algorithm 1, line 4); m(m+1)/2 for m < 2, where that logarithm is void."""
    return rank * (rank + 1) // 2 if rank < 2 else math.floor(4 * rank * math.log(math.log(rank)) + 16)


def near_optimal(actions: Vectors) -> ActionDesign:
    """Return a design with g(π) ≤ 2m on at most `support_bound(m)` actions, both checked here.

    actions  shape (k, d), in the unit ball; they may span less than R^d, and then m is less than d.
    Method   Frank-Wolfe on ln det V (Fedorov's steps) from m actions of greedily largest volume, until g(π) ≤ 2m; away
             steps drop what is not needed. It starts on m actions and adds one a step.
    Raises   BadParameter for a set that is not one, or when the promise cannot be kept.
    Source   DLB line 4; Lattimore, Szepesvári & Weisz 2020, Proposition 3.7; Todd 2016, chapter 3.
    """
    check_actions(actions)
    flat = whitened(actions)
    rank = flat.shape[1]
    weights = _frank_wolfe(flat, _largest_volume(flat))
    support = np.flatnonzero(weights)
    design = ActionDesign(tuple(support.tolist()), weights[support], rank, spread(flat, weights))
    if design.spread > 2 * rank * (1 + 1e-9) or len(support) > support_bound(rank):
        reached = f"g = {design.spread:.6g} on {len(support)} actions"
        raise BadParameter("policy.actions", reached, f"needs g ≤ {2 * rank} on at most {support_bound(rank)}")
    return design


def uniform(actions: Vectors) -> ActionDesign:
    """Return the design that plays every action alike: the ablation without a core set. Its g may be anything."""
    check_actions(actions)
    flat, k = whitened(actions), len(actions)
    weights = np.full(k, 1 / k)
    return ActionDesign(tuple(range(k)), weights, flat.shape[1], spread(flat, weights))


def whitened(actions: Vectors) -> Vectors:
    """Return the actions in coordinates of their span in which Σ x xᵀ is the identity, shape (k, m).

    No norm here depends on the coordinates, and these are the best conditioned ones.
    """
    left, singular, _ = np.linalg.svd(actions, full_matrices=False)
    kept: Vectors = left[:, singular > RANK * singular[0]]
    return kept


def spread(flat: Vectors, weights: Vectors) -> float:
    """Return g(π) for actions in coordinates of their span."""
    return float(_norms(flat, weights).max())


def _norms(flat: Vectors, weights: Vectors) -> Vectors:
    """Return ‖x‖² in the norm of V(π)⁻¹, shape (k,)."""
    used = weights > 0
    gram = (flat[used].T * weights[used]) @ flat[used]
    norms: Vectors = np.einsum("ij,ji->i", flat, np.linalg.solve(gram, flat.T))
    return norms


def _largest_volume(flat: Vectors) -> Vectors:
    """Return equal weights on m actions, each the farthest from the span of those before it."""
    rest, weights = flat.copy(), np.zeros(len(flat))
    for _ in range(flat.shape[1]):
        lengths = np.einsum("ij,ij->i", rest, rest)
        chosen = int(np.argmax(lengths))
        weights[chosen] = 1 / flat.shape[1]
        unit = rest[chosen] / math.sqrt(lengths[chosen])
        rest -= np.outer(rest @ unit, unit)
    return weights


def _frank_wolfe(flat: Vectors, weights: Vectors) -> Vectors:
    """Return a design with g(π) ≤ 2m: steps towards the worst action, then away from needless ones while that holds."""
    rank = flat.shape[1]
    for _ in range(STEPS):
        norms = _norms(flat, weights)
        worst = int(np.argmax(norms))
        if norms[worst] <= 2 * rank:
            return _pruned(flat, weights)
        step = (norms[worst] / rank - 1) / (norms[worst] - 1)
        weights = weights * (1 - step)
        weights[worst] += step
        least = int(np.argmin(np.where(weights > 0, norms, np.inf)))
        if norms[least] < 1 and least != worst:  # an action that hardly adds anything: one step away drops it
            weights = _dropped(flat, weights, least)
    return weights


def _dropped(flat: Vectors, weights: Vectors, action: int) -> Vectors:
    """Return the weights without `action`, unless det V would fall or the rest would span less."""
    without = weights.copy()
    without[action] = 0
    if np.count_nonzero(without) < flat.shape[1]:
        return weights
    without /= without.sum()
    before, after = (np.linalg.slogdet((flat.T * shares) @ flat)[1] for shares in (weights, without))
    return without if after >= before else weights


def _pruned(flat: Vectors, weights: Vectors) -> Vectors:
    """Return the design without its lightest actions, one by one, while g(π) ≤ 2m holds: fewer reports, less noise."""
    norms = _norms(flat, weights)
    for action in np.argsort(weights, kind="stable")[np.count_nonzero(weights == 0) :].tolist():
        if weights[action] * norms[action] > 1 - LEVERAGE:
            continue
        without = weights.copy()
        without[action] = 0
        without /= without.sum()
        left = _norms(flat, without)
        if left.max() <= 2 * flat.shape[1]:
            weights, norms = without, left
    return weights
