"""Tests the shares of a cohort that open parts of it: by brute force, by linear algebra, and against the page."""

import json
from itertools import combinations
from math import floor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from distrust.common.errors import BadParameter
from distrust.common.protocol.crypto.context import masking
from distrust.common.protocol.crypto.graph import Roster
from distrust.common.protocol.crypto.parameters import window
from distrust.lab.__main__ import app
from distrust.lab.audit.ring_cuts import best_cut, random_ring, ring_attacks, taken_clients
from tests.support.mask_algebra import Story, groups

PAGE = (Path(__file__).parents[2] / "docs/concepts/privacy/aggregator.md").read_text("utf-8")
HEAD = "| n | 10 % | 20 % | 30 % | 35 % | 40 % | 45 % | 50 % |\n|---|---|---|---|---|---|---|---|\n"
ROWS = {int(row.split("|")[1].replace(",", "")): row for row in PAGE.partition(HEAD)[2].split("\n\n")[0].splitlines()}
SHARES = (0.1, 0.2, 0.3, 0.35, 0.4, 0.45, 0.5)


def graph_of(roster: Roster) -> list[tuple[int, ...]]:
    return [roster.neighbours(slot) for slot in range(len(roster))]


def small_ring(n: int, k: int, t: int, seed: str) -> tuple[Roster, list[int]]:
    """Return a ring sparser than so small a cohort has in use, and its slots in random order."""
    roster, order = random_ring(n, 0.1, 0.1, seed)
    channel = masking(roster.cohort).model_copy(update={"neighbours": k, "threshold": t})
    cohort = roster.cohort.model_copy(update={"channel": channel})
    return Roster(cohort, roster.bitmap, roster.keys), order


def sides(graph: list[tuple[int, ...]], alive: set[int]) -> list[set[int]]:
    """Return the connected parts of the honest survivors."""
    left, parts = set(alive), []
    while left:
        part, edge = set(), {left.pop()}
        while edge:
            part |= edge
            edge = {v for u in edge for v in graph[u] if v in left}
            left -= edge
        parts.append(part)
    return parts


def brute_force(roster: Roster, colluders: set[int], most: int, w: int) -> int | None:
    """Return the fewest honest clients in a part, over every members' and survivors' set that clients accept."""
    n, graph, found = len(roster), graph_of(roster), []
    for lost in (set(one) for size in range(most + 1) for one in combinations(range(n), size)):
        survivors = set(range(n)) - lost
        bits = sum(1 << slot for slot in survivors)
        for members in (bits | sum(1 << slot for slot in kept) for kept in (set(), lost)):
            if roster.fault(members, bits, w) is None:
                parts = sides(graph, survivors - colluders)
                found += [min(map(len, parts))] if len(parts) > 1 else []
    return min(found, default=None)


@pytest.mark.parametrize(("n", "k", "t"), [(9, 4, 3), (10, 4, 3), (10, 4, 2), (10, 6, 4)])
@pytest.mark.few(2)
def test_no_losses_that_clients_accept_part_a_ring_that_the_search_does_not_part(n: int, k: int, t: int) -> None:
    """All sets of lost clients, colluders among them, with all of them as members and with none."""
    outcomes = set()
    for ring in range(12):
        roster, order = small_ring(n, k, t, f"small {ring}")
        for few in (2, 3, 4):
            for most, w in ((2, 1), (3, 2), (4, 2)):
                cut = best_cut(roster, order[:few], most, w)
                best = brute_force(roster, set(order[:few]), most, w)
                assert (None if cut is None else len(cut.part)) == best, (ring, few, most, w)
                outcomes.add(best)
    assert None in outcomes
    assert len(outcomes) > 1


def story_without(roster: Roster, lost: set[int]) -> dict[int, Story]:
    survivors = frozenset(range(len(roster))) - lost
    return dict.fromkeys(survivors, Story(survivors, survivors))


@pytest.mark.parametrize("share", [0.4, 0.45])
def test_a_cut_that_clients_accept_opens_the_sum_of_each_side(share: float) -> None:
    """n = 200, at the k, t and w in use. The colluders in the two runs suffice: around no client are t of them."""
    w, most, found = window(200, 0.1, 0.1), 20, 0
    for ring in range(20):
        roster, order = random_ring(200, 0.1, 0.1, f"cut {ring}")
        colluders = order[: floor(share * 200)]
        cut = best_cut(roster, colluders, most, w)
        if cut is None or taken_clients(roster, cut.held):
            continue
        found += 1
        assert set(cut.held) <= set(colluders)
        assert len(cut.lost) <= most
        assert not set(cut.lost) & set(colluders)
        stories = story_without(roster, set(cut.lost))
        survivors = sum(1 << slot for slot in stories)
        assert roster.fault(survivors, survivors, w) is None
        opened = groups(graph_of(roster), stories, masking(roster.cohort).threshold, set(cut.held))
        assert opened == set(map(frozenset, sides(graph_of(roster), set(stories) - set(cut.held))))
        assert len(opened) == 2
        assert any(set(cut.part) <= side for side in opened)
    assert found


def test_t_colluding_neighbours_open_a_clients_own_vector_and_one_less_do_not() -> None:
    roster, order = random_ring(200, 0.1, 0.1, "taken 1")
    graph, t = graph_of(roster), masking(roster.cohort).threshold
    victim, stories = order[0], story_without(roster, set())
    for near, opened in ((t, True), (t - 1, False)):
        colluders = set(graph[victim][:near])
        assert (victim in taken_clients(roster, sorted(colluders))) == opened
        assert (frozenset({victim}) in groups(graph, stories, t, colluders)) == opened


def row_of(n: int) -> str:
    cells = ring_attacks(n, dropout=0.1, corrupt=0.1, shares=SHARES, rings=100, seed=1)
    return f"| {n:,} | " + " | ".join(f"{cell.cut}, {cell.taken}" for cell in cells) + " |"


@pytest.mark.parametrize(
    "n", [100, 200, pytest.param(400, marks=pytest.mark.slow), pytest.param(1000, marks=pytest.mark.slow)]
)
@pytest.mark.few(2)
def test_the_table_of_the_page_is_what_the_command_finds(n: int) -> None:
    assert row_of(n) == ROWS[n]
    assert list(ROWS) == [100, 200, 400, 1000]


def test_the_command_prints_what_an_aggregator_with_so_many_colluders_opens() -> None:
    done = CliRunner().invoke(
        app, ["ring", "--n", "200", "--share", "0.3", "--share", "0.5", "--rings", "20", "--json", "-"]
    )
    result = json.loads(done.stdout)
    none, all_ = result["shares"]
    assert (result["rings"], none["colluders"], none["cut"], none["smallest"], none["taken"]) == (20, 60, 0, None, 0)
    assert (all_["colluders"], all_["cut"], all_["taken"], all_["smallest"]) == (100, 20, 20, 1)
    table = CliRunner().invoke(app, ["ring", "--n", "40", "--rings", "1", "--share", "0.1"]).stdout
    assert "calibrated to 10% lost and 10% colluders" in table


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"n": 1}, "n"),
        ({"n": 10_001}, "n"),
        ({"rings": 0}, "rings"),
        ({"shares": [1.0]}, "share"),
        ({"dropout": 0.5}, "dropout"),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(change: dict[str, float], field: str) -> None:
    fields = {"n": 100, "dropout": 0.1, "corrupt": 0.1, "shares": [0.1], "rings": 1, "seed": 1, **change}
    with pytest.raises(BadParameter) as refused:
        ring_attacks(fields.pop("n"), **fields)
    assert refused.value.field == field


def test_a_full_graph_has_no_ring_to_cut() -> None:
    assert [one.cut for one in ring_attacks(30, dropout=0.1, corrupt=0.1, shares=(0.3, 0.6), rings=5, seed=1)] == [0, 0]
