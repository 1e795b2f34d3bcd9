"""Tests that the five stages give the exact sum of the survivors, or a named error."""

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distrust.aggregator import protocol
from distrust.aggregator.confirmation import Sharing
from distrust.aggregator.recovery import sum_masked
from distrust.common.errors import BadMessage, BadParameter, BadShare, TooSmall
from distrust.common.modular import Vector, pack
from distrust.common.protocol.channels.masked import Masking
from distrust.common.protocol.crypto.graph import Roster
from distrust.common.protocol.crypto.seal import BOX
from distrust.lab.secagg_simulation import Departures, Simulation, enrol, make_cohort, play_stages

MODULI = st.one_of(st.integers(2, 2**63 - 1), st.integers(2**62, 2**63 - 1), st.integers(2, 1000))


def unique(n: int, dimension: int, modulus: int) -> Vector:
    """Return 2^i for client i in its first coordinates while there is room, so that each loss or double count shows."""
    rows = [[(pow(2, i) * pow(3, j) + i) % modulus for j in range(dimension)] for i in range(n)]
    return np.array(rows, dtype=np.uint64)


def honest_sum(vectors: Vector, slots: list[int], modulus: int) -> list[int]:
    return [sum(int(vectors[s, j]) for s in slots) % modulus for j in range(vectors.shape[1])]


RATES = st.tuples(st.floats(0, 0.49), st.floats(0, 0.3))


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 30), MODULI, st.integers(1, 12), RATES, st.randoms())
def test_the_exact_sum_of_the_survivors_or_a_named_error(
    n: int, modulus: int, dimension: int, rates: tuple[float, float], chance: random.Random
) -> None:
    dropout, corrupt = rates
    try:
        cohort = make_cohort(n, modulus, dimension, dropout=dropout, corrupt=corrupt)
    except BadParameter:
        return  # no threshold stands these rates
    leaving = chance.sample(range(n), chance.randint(0, min(n, int(dropout * n) + chance.randint(0, 1))))
    stage = {slot: chance.randrange(5) for slot in leaving}
    gone = [frozenset(slot for slot in leaving if stage[slot] == i) for i in range(5)]
    vectors, simulation = unique(n, dimension, modulus), enrol(cohort, dropout=dropout, corrupt=corrupt)
    try:
        result = play_stages(simulation, vectors, Departures(*gone), chance.sample(range(n), n))
    except TooSmall:  # only if more left than the rate allows, or the cohort is too small for any loss
        assert len(leaving) > int(dropout * n) or n - len(leaving) < protocol.min_clients(cohort)
        return
    survivors = [slot for slot in range(n) if slot not in leaving or stage[slot] == 4]
    assert result.tolist() == honest_sum(vectors, survivors, modulus)


@pytest.mark.parametrize("stage", ["keys", "shares", "confirm", "masked", "unmask"])
@pytest.mark.parametrize("n", [50, 90])
@pytest.mark.few(5)
def test_on_a_sparse_graph_clients_may_be_lost_at_any_stage(n: int, stage: str) -> None:
    chance = random.Random(n)
    lost = chance.sample(range(n), n // 10)
    vectors, simulation = unique(n, 3, 2**62 - 57), enrol(make_cohort(n, 2**62 - 57, 3))
    result = play_stages(simulation, vectors, Departures(**{stage: lost}), chance.sample(range(n), n))
    survivors = [slot for slot in range(n) if slot not in lost or stage == "unmask"]
    assert result.tolist() == honest_sum(vectors, survivors, 2**62 - 57)


def test_losses_at_all_stages_together_are_survived() -> None:
    simulation, vectors = enrol(make_cohort(100, 1000, 1)), unique(100, 1, 1000)
    gone = [range(2 * i, 2 * i + 2) for i in range(5)]
    departures = Departures(*gone)
    result = play_stages(simulation, vectors, departures, range(100)).tolist()
    assert result == honest_sum(vectors, list(range(8, 100)), 1000)


def finished(n: int = 24, modulus: int = 97, lost: tuple[int, ...] = (3,)) -> tuple[Simulation, Vector]:
    simulation, vectors = enrol(make_cohort(n, modulus, 2)), unique(n, 2, modulus)
    everyone = range(n)
    simulation.send_keys(everyone)
    simulation.send_shares(everyone)
    simulation.send_confirm(everyone)
    rest = [slot for slot in everyone if slot not in lost]
    simulation.send_masked(rest, vectors)
    simulation.send_unmask(rest)
    return simulation, vectors


def test_recovery_gives_the_same_sum_whichever_t_neighbours_answered() -> None:
    simulation, vectors = finished(n=60, lost=(3, 30))
    expected = honest_sum(vectors, [s for s in range(60) if s not in (3, 30)], 97)
    for seed in range(20):
        silent = random.Random(seed).sample(sorted(simulation.answers), 4)
        answers = {slot: body for slot, body in simulation.answers.items() if slot not in silent}
        assert replace(simulation, answers=answers).recover().tolist() == expected


def test_below_the_minimum_nothing_is_released_at_any_stage() -> None:
    cohort = make_cohort(24, 97, 1)
    assert protocol.min_clients(cohort) == 22
    for stage in ("keys", "shares", "confirm", "masked"):
        with pytest.raises(TooSmall, match="nothing is released"):
            play_stages(enrol(cohort), unique(24, 1, 97), Departures(**{stage: range(3)}), range(24))


def test_without_t_answers_nothing_is_released() -> None:
    simulation, _ = finished(lost=())
    t = simulation.cohort.channel.threshold
    simulation.answers = dict(list(simulation.answers.items())[:t])
    with pytest.raises(TooSmall, match="shares of slot 0"):
        simulation.recover()


def test_too_few_masked_vectors_are_not_unmasked_even_if_shares_are_there() -> None:
    simulation, _ = finished(lost=())
    simulation.masked = dict(list(simulation.masked.items())[:21])
    with pytest.raises(TooSmall, match="survivors"):
        simulation.recover()


def test_a_survivor_that_everyone_called_lost_spoils_the_sum_by_name_and_is_not_unmasked() -> None:
    """A vector that comes after the survivors were frozen keeps its self mask, whose seed is not rebuilt."""
    simulation, vectors = finished(lost=(3,))
    members = simulation.bitmap(simulation.members)
    simulation.masked[3] = simulation.clients[3].masked(vectors[3], members, simulation.statements["masked"])
    with pytest.raises(BadShare, match="slot 3"):
        simulation.recover()


def thin(threshold: int) -> Roster:
    """Return a roster of forty clients on a ring of degree 4. Its minimum does not matter."""
    channel = Masking(modulus=97, dimension=1, neighbours=4, threshold=threshold)
    cohort = make_cohort(40, 97, 1)
    keys = {slot: client.keys() for slot, client in enrol(cohort).clients.items()}
    return protocol.build_roster(cohort.model_copy(update={"channel": channel, "minimum": 20}), keys)


def test_clients_that_could_not_be_rebuilt_are_left_out_before_others_mask_with_them() -> None:
    roster = thin(threshold=2)
    missing = roster.neighbours(7)[:3]
    settled = protocol.settle_shared(roster, set(range(40)) - set(missing))
    assert 7 not in settled
    assert all(sum(v in settled for v in roster.neighbours(slot)) >= 2 for slot in settled)
    assert len(settled) >= 30


def test_survivors_too_thin_around_one_client_are_seen_before_anyone_is_asked() -> None:
    roster = thin(threshold=3)
    sharing = Sharing(roster, range(40))
    protocol.check_survivors(sharing, set(range(40)) - {roster.neighbours(7)[0]})
    with pytest.raises(TooSmall, match=r"2 survivors around slot \d+"):
        protocol.check_survivors(sharing, set(range(40)) - set(roster.neighbours(7)[:2]))


def test_survivors_that_lie_too_thinly_in_one_place_of_the_ring_are_seen_before_anyone_is_asked() -> None:
    """Clients would refuse them: w = 9 of 19 consecutive places, at n = 100."""
    cohort = make_cohort(100, 97, 1)
    keys = {slot: client.keys() for slot, client in enrol(cohort).clients.items()}
    roster = protocol.build_roster(cohort, keys)
    order = roster.slots[roster.ring].tolist()
    sharing = Sharing(roster, range(100))
    protocol.check_survivors(sharing, set(range(100)) - set(order[:19:2]) | {order[0]})
    with pytest.raises(TooSmall, match="9 survivors in 19 consecutive places of the ring, at least 10 needed"):
        protocol.check_survivors(sharing, set(range(100)) - set(order[:19:2]))


def test_an_inbox_holds_each_neighbours_box_in_neighbour_order() -> None:
    simulation, _ = finished(n=40, lost=())
    roster = simulation.roster
    for slot in roster.members:
        boxes = []
        for v in roster.neighbours(slot):
            start = 32 + BOX * roster.neighbours(v).index(slot)
            boxes.append(simulation.shares[v][start : start + BOX])
        assert simulation.inboxes[slot] == b"".join(boxes)


@pytest.mark.parametrize(
    ("stage", "body"),
    [
        ("keys", b"\x09" * 63),
        ("keys", bytes(64)),
        ("shares", bytes(32 + BOX * 23 - 1)),
        ("shares", b""),
        ("masked", bytes(1)),
        ("masked", pack(np.array([97, 0], dtype=np.uint64), 128)),
        ("unmask", bytes(17 * 23 + 1)),
        ("unmask", b"\xff" * 16 + b"\xfe" + bytes(17 * 22)),
        ("confirm", bytes(17 * (12 + 23) - 1)),
        ("confirm", b"\xff" * 17 + bytes(17 * 34)),
        ("confirm", bytes(17 * 12) + b"\x04" + bytes(17 * 23 - 1)),
    ],
)
def test_a_body_of_the_wrong_size_or_range_is_refused(stage: str, body: bytes) -> None:
    simulation, _ = finished(lost=())
    checks: dict[str, Callable[[], None]] = {
        "keys": lambda: protocol.check_keys(body),
        "shares": lambda: protocol.check_shares(simulation.roster, 0, body),
        "masked": lambda: protocol.check_masked(simulation.cohort, body),
        "confirm": lambda: protocol.check_confirm(simulation.sharing, 0, body),
        "unmask": lambda: protocol.check_unmask(simulation.sharing, 0, body),
    }
    with pytest.raises(BadMessage):
        checks[stage]()


def test_recovery_refuses_answers_and_vectors_that_do_not_belong() -> None:
    simulation, _ = finished(lost=())
    for wrong in ({99: b""}, {**simulation.answers, 0: b""}):
        with pytest.raises(BadMessage):
            replace(simulation, answers=wrong).recover()
    with pytest.raises(BadMessage):
        replace(simulation, masked={**simulation.masked, 0: b"\0\0\0"}).recover()


def test_masked_vectors_of_other_sizes_are_not_added_also_if_they_fill_whole_vectors_together() -> None:
    cohort = make_cohort(4, 1000, 3)
    body = pack(np.array([1, 2, 3], dtype=np.uint64), 1000)
    assert sum_masked(cohort, [body, body]).tolist() == [2, 4, 6]
    with pytest.raises(BadMessage, match=f"must have {len(body)} bytes"):
        sum_masked(cohort, [body[:-1], body + bytes(1)])
