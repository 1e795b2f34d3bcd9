"""Computes the sums that an aggregator learns if it tells each client its own story, by linear algebra on masks.

Client u sends y_u = x_u + s_u + Σ ± m_uv over its neighbours v among the members that it was told. It reveals, for each
of these, a share of v's self seed if it was told that v survived, and of v's mask key seed otherwise. t shares give a
secret: a self seed gives s_v, a mask key seed gives m_vw for all w. A combination Σ a_u·x_u is determined if every
unknown mask cancels in Σ a_u·y_u.

Colluding clients tell the aggregator their keys, seeds and vectors, and both shares that they hold of every neighbour.
So their masks are known, and the question is which sums of the other clients' vectors are determined.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

Graph = Sequence[Sequence[int]]
"""For each client its neighbours."""
NO_CLIENTS: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Story:
    """The members that one client is told before it sends its vector, and the survivors before it reveals shares.

    survivors   None: the client refuses, and reveals nothing.
    """

    members: frozenset[int]
    survivors: frozenset[int] | None


def believed(graph: Graph, slot: int, story: Story, threshold: int, minimum: int) -> bool:
    """Return True if a client that makes the graph's checks, and reads no statements, answers its story."""
    near = set(graph[slot])
    return story.survivors is not None and (
        slot in story.survivors <= story.members
        and len(story.survivors) >= minimum
        and len(near & story.survivors) >= threshold
    )


def known_masks(
    graph: Graph, stories: Mapping[int, Story], threshold: int, colluders: AbstractSet[int] = NO_CLIENTS
) -> tuple[set[int], set[int]]:
    """Return the clients whose self mask, and those whose pair masks, the aggregator can compute."""
    alive, lost = dict.fromkeys(range(len(graph)), 0), dict.fromkeys(range(len(graph)), 0)
    for slot, story in stories.items():
        if story.survivors is None or slot in colluders:
            continue
        for v in graph[slot]:
            if v in story.survivors:
                alive[v] += 1
            elif v in story.members:
                lost[v] += 1
    for slot in colluders:
        for v in graph[slot]:
            alive[v] += 1
            lost[v] += 1
    result = [{v for v in shares if v in colluders or shares[v] >= threshold} for shares in (alive, lost)]
    return result[0], result[1]


def unknown_masks(
    graph: Graph, stories: Mapping[int, Story], threshold: int, colluders: AbstractSet[int] = NO_CLIENTS
) -> Iterator[dict[int, int]]:
    """Yield the coefficients of each unknown mask in the y of the clients: 1, or 1 and -1."""
    selves, pairs = known_masks(graph, stories, threshold, colluders)
    for slot in stories:
        if slot not in selves:
            yield {slot: 1}
    for slot, near in enumerate(graph):
        for v in near:
            if slot < v and slot not in pairs and v not in pairs:
                ends = {a: sign for a, b, sign in ((slot, v, 1), (v, slot, -1)) if a in stories}
                used = {a: sign for a, sign in ends.items() if (v if a == slot else slot) in stories[a].members}
                if used:
                    yield used


def groups(
    graph: Graph, stories: Mapping[int, Story], threshold: int, colluders: AbstractSet[int] = NO_CLIENTS
) -> set[frozenset[int]]:
    """Return the minimal sets of honest clients whose sum is determined. All determined sums are combinations of these.

    A mask of one y forces its coefficient to zero, a mask of two makes their coefficients equal.
    """
    honest = [slot for slot in stories if slot not in colluders]
    parent = {slot: slot for slot in honest} | {-1: -1}

    def root(slot: int) -> int:
        while parent[slot] != slot:
            parent[slot] = parent[parent[slot]]
            slot = parent[slot]
        return slot

    for mask in unknown_masks(graph, stories, threshold, colluders):
        first, second = (*mask, -1)[:2]
        parent[root(first)] = root(second)
    result: dict[int, set[int]] = {}
    for slot in honest:
        result.setdefault(root(slot), set()).add(slot)
    return {frozenset(group) for top, group in result.items() if top != root(-1)}


def dimension(
    graph: Graph,
    stories: Mapping[int, Story],
    threshold: int,
    colluders: AbstractSet[int] = NO_CLIENTS,
    prime: int = 2**31 - 1,
) -> int:
    """Return the number of independent determined combinations: clients less the rank of the masks modulo a prime."""
    order = {slot: i for i, slot in enumerate(slot for slot in stories if slot not in colluders)}
    pivots: dict[int, dict[int, int]] = {}
    for mask in unknown_masks(graph, stories, threshold, colluders):
        row = {order[slot]: sign % prime for slot, sign in mask.items()}
        while row:
            lead = min(row)
            if lead not in pivots:
                scale = pow(row[lead], -1, prime)
                pivots[lead] = {i: value * scale % prime for i, value in row.items()}
                break
            factor = row[lead]
            for i, value in pivots[lead].items():
                row[i] = (row.get(i, 0) - factor * value) % prime
            row = {i: value for i, value in row.items() if value}
    return len(order) - len(pivots)


def ring(n: int, degree: int) -> list[list[int]]:
    """Return a Harary ring in the order of the slots; the full graph when the degree reaches n - 1."""
    if degree >= n - 1:
        return [[v for v in range(n) if v != slot] for slot in range(n)]
    steps = [*range(-(degree // 2), 0), *range(1, degree // 2 + 1)]
    return [sorted((slot + step) % n for step in steps) for slot in range(n)]


def subsets(items: frozenset[int], least: int) -> list[frozenset[int]]:
    """Return all subsets of at least `least` items."""
    ordered = sorted(items)
    return [frozenset(c) for size in range(least, len(ordered) + 1) for c in combinations(ordered, size)]


def opening(graph: Graph, victim: int, threshold: int, lost: int) -> dict[int, Story] | None:
    """Return stories that open one client, or None if there are none.

    Other clients reveal the mask key seeds of all its neighbours, and its neighbours reveal its self seed. An integer
    program chooses the clients that are told that a neighbour w of the victim is lost: t clients for each w. A client
    is told of no more losses than the cohort allows, and of so few that t of its neighbours are left.
    """
    near = graph[victim]
    pairs = [(u, w) for w in near for u in graph[w]]
    most = min(lost, len(near) - threshold)
    tellers = sorted({u for u, _ in pairs})
    rows = {("w", w): i for i, w in enumerate(near)} | {("u", u): len(near) + i for i, u in enumerate(tellers)}
    at = [i for u, w in pairs for i in (rows["w", w], rows["u", u])]
    matrix = csr_array((np.ones(len(at)), (at, np.repeat(np.arange(len(pairs)), 2))), shape=(len(rows), len(pairs)))
    least = np.array([threshold] * len(near) + [0] * len(tellers))
    limit = np.array([len(graph)] * len(near) + [most] * len(tellers))
    result = milp(
        np.ones(len(pairs)),
        constraints=LinearConstraint(matrix, least, limit),
        integrality=np.ones(len(pairs)),
        bounds=Bounds(0, 1),
    )
    if result.x is None:
        return None
    everyone = frozenset(range(len(graph)))
    losses: dict[int, set[int]] = {slot: set() for slot in everyone}
    for (u, w), chosen in zip(pairs, result.x, strict=True):
        if chosen > 0.5:
            losses[u].add(w)
    return {slot: Story(everyone, everyone - gone) for slot, gone in losses.items()}
