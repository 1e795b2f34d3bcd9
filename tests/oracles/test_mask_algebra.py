"""Tests by linear algebra that an aggregator opens single vectors without statements, and only one sum with them.

With statements all clients are told one story. Up to six clients are enumerated: one story for all with any losses, and
a story for each client with at most one lost client. For real k and t an integer program finds the opening without
statements. aggregator.md argues that there is none with them. Random and hostile sets of survivors, with
and without colluders, are checked by the oracle.
"""

import random
from itertools import product

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from distrust.common.protocol.crypto.context import masking
from distrust.common.protocol.crypto.graph import KEYS_SIZE, Roster, members_to_bitmap
from distrust.common.protocol.crypto.parameters import neighbourhood, window
from distrust.lab.secagg_simulation import make_cohort
from tests.support.mask_algebra import Graph, Story, believed, dimension, groups, opening, ring, subsets
from tests.support.picked import picked


def own_stories(graph: Graph, slot: int, threshold: int, minimum: int) -> list[Story]:
    """Return all stories that one client would answer without statements."""
    everyone = frozenset(range(len(graph)))
    views = [Story(m, s) for m in subsets(everyone, minimum) for s in subsets(m, minimum)]
    return [story for story in views if believed(graph, slot, story, threshold, minimum)]


def test_the_rank_and_the_groups_agree() -> None:
    """The rank modulo a prime, and the components of the graph of unknown masks, give the number of determined sums."""
    chance, graph = random.Random(1), ring(7, 4)
    views = [own_stories(graph, slot, 2, 4) for slot in range(7)]
    for _ in range(400):
        stories = {slot: chance.choice(views[slot]) for slot in chance.sample(range(7), chance.randint(3, 7))}
        threshold, colluders = chance.randint(1, 4), set(chance.sample(range(7), chance.randint(0, 3)))
        result = groups(graph, stories, threshold, colluders)
        assert dimension(graph, stories, threshold, colluders) == len(result)


@pytest.mark.parametrize(("n", "degree"), [(2, 1), (3, 2), (4, 3), (4, 2), (5, 4), (5, 2), (6, 5), (6, 4), (6, 2)])
def test_with_one_story_for_all_only_the_sum_over_the_survivors_is_determined(n: int, degree: int) -> None:
    """For all sets of members and survivors and all thresholds above k/2, if no run of k/2 places is lost."""
    graph, everyone = ring(n, degree), frozenset(range(n))
    for threshold in range(degree // 2 + 1, degree + 1):
        for story in (Story(m, s) for m in subsets(everyone, 2) for s in subsets(m, 2)):
            if any(len(story.survivors & set(graph[v])) < threshold for v in story.members):
                continue  # the first check of the public graph
            half = degree // 2
            runs = [{(v + i) % n for i in range(half)} for v in range(n)]
            if degree < n - 1 and any(not run & story.survivors for run in runs):
                continue  # the second: w is below k/2
            stories = dict.fromkeys(story.survivors, story)
            assert groups(graph, stories, threshold) <= {story.survivors}


def one_lost(graph: Graph, slot: int, threshold: int) -> list[Story | None]:
    """Return the stories with at most one lost client: first none, then each client as lost, then each as no member.

    An entry is None if the client would not answer.
    """
    everyone = frozenset(range(len(graph)))
    views = [Story(everyone, everyone)]
    views += [Story(everyone, everyone - {v}) for v in sorted(everyone)]
    views += [Story(everyone - {v}, everyone - {v}) for v in sorted(everyone)]
    return [view if believed(graph, slot, view, threshold, len(graph) - 1) else None for view in views]


def symmetries(graph: Graph) -> list[list[int]]:
    """Return those of a rotation, a reflection and two swaps of the clients that map the graph to itself."""
    n = len(graph)
    edges = {frozenset((u, v)) for u, near in enumerate(graph) for v in near}
    opposite = n // 2
    tried = [
        [*range(1, n), 0],
        [*range(n)][::-1],
        [1, 0, *range(2, n)],
        [opposite, *range(1, opposite), 0, *range(opposite + 1, n)],
    ]
    return [p for p in tried if all(frozenset(p[v] for v in edge) in edges for edge in edges)]


def different_stories(graph: Graph, threshold: int) -> tuple[list[dict[int, Story]], int]:
    """Return one combination of stories of each class under the symmetries, and the number of all combinations."""
    n = len(graph)
    views = [one_lost(graph, slot, threshold) for slot in range(n)]
    heard = [[i for i, one in enumerate(own) if one is not None] for own in views]
    codes = np.stack(np.meshgrid(*heard, indexing="ij"), axis=-1).reshape(-1, n)
    weights = (2 * n + 1) ** np.arange(n)[::-1]
    numbers = codes @ weights  # ascending
    links = []
    for p in symmetries(graph):
        renamed = np.array([0, *(1 + v for v in p), *(1 + n + v for v in p)])
        links.append(np.searchsorted(numbers, renamed[codes] @ weights[p]))
    rows = np.tile(np.arange(len(codes), dtype=np.int32), len(links))
    matrix = csr_array((np.ones(len(rows), dtype=np.int8), (rows, np.concatenate(links))), shape=(len(codes),) * 2)
    _, classes = connected_components(matrix, directed=False)
    _, first = np.unique(classes, return_index=True)
    kept = codes[first].tolist()
    return [{u: story for u, i in enumerate(code) if (story := views[u][i]) is not None} for code in kept], len(codes)


@pytest.mark.parametrize(
    ("n", "degree", "threshold", "fewest"),
    [
        pytest.param(4, 3, 1, 1, id="t-below-half-opens-one"),
        pytest.param(4, 3, 2, 2, id="two-members-sets-open-two-of-four"),
        pytest.param(4, 2, 2, 4, id="every-share-is-needed"),
        pytest.param(5, 4, 3, 4, id="five"),
        *picked(
            [
                pytest.param(6, 5, 3, 4, id="six", marks=pytest.mark.slow),
                pytest.param(6, 4, 3, 4, id="six-on-a-ring", marks=pytest.mark.slow),
            ],
            1,
            "six clients",
        ),
        pytest.param(6, 2, 2, 6, id="six-on-a-sparse-ring"),
    ],
)
@pytest.mark.few(3)
def test_every_story_of_a_few_clients_without_statements(n: int, degree: int, threshold: int, fewest: int) -> None:
    """The fewest clients in an opened sum, over all combinations of members and survivors with one lost at most.

    Combinations that are equal up to a renaming of the clients are computed once. With n = 4 and t = 2, a majority, a
    sum of two is opened, and the minimum is three. With n = 6 and t = 3 a sum of four is opened, and the minimum is
    five.
    """
    graph = ring(n, degree)
    different, everything = different_stories(graph, threshold)
    if degree == n - 1:
        assert everything == (2 * n - 1) ** n  # for each client none, or one of n - 1 others in either way
    opened = [result for stories in different for result in groups(graph, stories, threshold)]
    assert min(map(len, opened)) == fewest


@pytest.mark.parametrize(("n", "lost", "threshold"), [(6, 2, 2), (6, 2, 3)])
def test_two_survivors_sets_open_one_client_of_a_ring_whose_threshold_is_half(
    n: int, lost: int, threshold: int
) -> None:
    """At k = 4, t = k/2 half of the neighbours give the self seed, half the mask key seed. A larger t prevents it."""
    graph, everyone = ring(n, 4), frozenset(range(n))
    views = [[Story(everyone, s) for s in subsets(everyone, n - lost)] for _ in range(n)]
    views = [[s for s in own if believed(graph, slot, s, threshold, n - lost)] for slot, own in enumerate(views)]
    chance = random.Random(1)
    both = 0
    for _ in range(4000):
        stories = {slot: chance.choice(own) for slot, own in enumerate(views)}
        both += frozenset({0}) in groups(graph, stories, threshold)
    assert (both > 0) == (threshold == 2)


@pytest.mark.parametrize("n", [150, 400, pytest.param(1000, marks=pytest.mark.slow)])
def test_without_statements_an_aggregator_without_colluders_opens_any_client(n: int) -> None:
    """It does so at the k and t in use: t > k/2 is not enough on a sparse ring."""
    k, t = neighbourhood(n, 0.1, 0.1)
    graph = ring(n, k)
    stories = opening(graph, 0, t, n // 10)
    assert stories is not None
    assert all(believed(graph, slot, story, t, n - n // 10) for slot, story in stories.items())
    assert frozenset({0}) in groups(graph, stories, t)


@pytest.mark.parametrize(("n", "k", "t"), [(50, 12, 6), (100, 20, 11)])
def test_a_dense_ring_with_few_losses_has_no_such_opening_and_the_sparser_first_version_had(
    n: int, k: int, t: int
) -> None:
    assert opening(ring(n, k), 0, t, n // 10) is not None
    k, t = neighbourhood(n, 0.1, 0.1)
    assert opening(ring(n, k), 0, t, n // 10) is None


@pytest.mark.parametrize("n", [100, 400])
def test_with_statements_no_survivors_that_clients_accept_open_more_than_their_sum(n: int) -> None:
    """k, t, w and the random graph are those of clients. Losses are random, and as dense as the checks allow."""
    chance = random.Random(n)
    colluders = set(chance.sample(range(n), n // 10))
    cohort = make_cohort(n, 97, 1)
    everyone = members_to_bitmap(range(n), n)
    roster = Roster(cohort, everyone, chance.randbytes(KEYS_SIZE * n))
    graph = [roster.neighbours(slot) for slot in range(n)]
    order, w = roster.slots[roster.ring].tolist(), window(n, 0.1, 0.1)
    half, accepted = masking(cohort).neighbours // 2, 0
    for round_ in range(12):
        gone = set(chance.sample(range(n), n // 10))
        if round_ % 2:
            start, far = chance.randrange(n), n // 2
            dense = [order[(start + shift + i) % n] for shift in (0, far) for i in chance.sample(range(half), w)]
            gone = set(dense[: n // 10])
        survivors = frozenset(range(n)) - gone
        bits = sum(1 << slot for slot in survivors)
        if roster.fault(roster.bits, bits, w) is not None:
            continue
        accepted += 1
        story = Story(frozenset(range(n)), survivors)
        views, t = dict.fromkeys(survivors, story), masking(cohort).threshold
        assert groups(graph, views, t) == {survivors}
        assert groups(graph, views, t, colluders) == {survivors - colluders}
    assert accepted >= 6


@pytest.mark.parametrize("threshold", [2, 3, 4])
def test_fewer_than_t_colluders_learn_the_sum_of_the_others_and_t_open_all_clients(threshold: int) -> None:
    """n = 6, k = 5, one story, for all sets of survivors with at most two lost and all sets of colluders."""
    graph, everyone = ring(6, 5), frozenset(range(6))
    for survivors, colluders in product(subsets(everyone, 4), subsets(everyone, 1)):
        if len(survivors) <= threshold:
            continue  # clients refuse: fewer than t neighbours are left
        honest = survivors - colluders
        views = dict.fromkeys(survivors, Story(everyone, survivors))
        result = groups(graph, views, threshold, colluders)
        if len(colluders) < threshold:
            assert result == ({honest} if honest else set())
        else:
            assert result == {frozenset({slot}) for slot in honest}


def test_colluders_and_chosen_losses_cut_the_ring_where_w_is_not_kept() -> None:
    """n = 20, k = 8, t = 5. Two runs of four places have a colluder and three lost clients each; t is kept everywhere.

    Two parts of the others' sum are then determined. With w = 2 the attack would need four colluders.
    """
    n, t = 20, 5
    graph, everyone = ring(n, 8), frozenset(range(n))
    colluders, lost = {0, 10}, {1, 2, 3, 11, 12, 13}
    survivors = everyone - lost
    assert all(len(survivors & set(near)) >= t for near in graph)
    assert max(len(lost & {(start + i) % n for i in range(4)}) for start in range(n)) == 3
    views = dict.fromkeys(survivors, Story(everyone, survivors))
    assert groups(graph, views, t) == {survivors}
    assert groups(graph, views, t, colluders) == {frozenset(range(4, 10)), frozenset(range(14, 20))}
    for kept in lost:  # one lost less, in either run: w = 2 there
        more = survivors | {kept}
        views = dict.fromkeys(more, Story(everyone, more))
        assert groups(graph, views, t, colluders) == {more - colluders}
