"""The four rounds together: the exact sum of the survivors, or a named error, never a wrong sum."""

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator import protocol
from common.crypto.graph import Roster
from common.crypto.share import SHARE
from common.errors import BadMessage, BadParameter, BadShare, Refused, TooSmall
from common.messages.cohort import Masking
from common.modular import Vector, pack
from lab.secagg_simulation import Departures, Simulation, enrol, make_cohort, play

MODULI = st.one_of(st.integers(2, 2**63 - 1), st.integers(2**62, 2**63 - 1), st.integers(2, 1000))


def unique(n: int, dimension: int, modulus: int) -> Vector:
    """Client i holds 2^i in its first coordinates while there is room, so that each loss or double count shows."""
    rows = [[(pow(2, i) * pow(3, j) + i) % modulus for j in range(dimension)] for i in range(n)]
    return np.array(rows, dtype=np.uint64)


def honest_sum(vectors: Vector, slots: list[int], modulus: int) -> list[int]:
    return [sum(int(vectors[s, j]) for s in slots) % modulus for j in range(vectors.shape[1])]


RATES = st.tuples(st.floats(0, 0.49), st.floats(0, 0.3))


@settings(deadline=None, max_examples=100)
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
    stage = {slot: chance.randrange(4) for slot in leaving}
    gone = [frozenset(slot for slot in leaving if stage[slot] == i) for i in range(4)]
    vectors, simulation = unique(n, dimension, modulus), enrol(cohort, dropout=dropout, corrupt=corrupt)
    try:
        found = play(simulation, vectors, Departures(*gone), chance.sample(range(n), n))
    except TooSmall:  # only if more left than the rate allows, or the cohort is too small for any loss
        assert len(leaving) > int(dropout * n) or n - len(leaving) < protocol.least(cohort)
        return
    survivors = [slot for slot in range(n) if slot not in leaving or stage[slot] == 3]
    assert found.tolist() == honest_sum(vectors, survivors, modulus)


@pytest.mark.parametrize("stage", ["keys", "shares", "masked", "unmask"])
@pytest.mark.parametrize("n", [50, 120])
def test_on_a_sparse_graph_clients_may_be_lost_at_any_stage(n: int, stage: str) -> None:
    """Rule 10."""
    chance = random.Random(n)
    lost = chance.sample(range(n), n // 10)
    vectors, simulation = unique(n, 3, 2**62 - 57), enrol(make_cohort(n, 2**62 - 57, 3))
    found = play(simulation, vectors, Departures(**{stage: lost}), chance.sample(range(n), n))
    survivors = [slot for slot in range(n) if slot not in lost or stage == "unmask"]
    assert found.tolist() == honest_sum(vectors, survivors, 2**62 - 57)


def test_losses_at_all_stages_together_are_survived() -> None:
    simulation, vectors = enrol(make_cohort(200, 1000, 1)), unique(200, 1, 1000)
    departures = Departures(keys=range(5), shares=range(5, 10), masked=range(10, 15), unmask=range(15, 20))
    assert play(simulation, vectors, departures, range(200)).tolist() == honest_sum(vectors, list(range(15, 200)), 1000)


def finished(n: int = 24, modulus: int = 97, lost: tuple[int, ...] = (3,)) -> tuple[Simulation, Vector]:
    simulation, vectors = enrol(make_cohort(n, modulus, 2)), unique(n, 2, modulus)
    everyone = range(n)
    simulation.send_keys(everyone)
    simulation.send_shares(everyone)
    rest = [slot for slot in everyone if slot not in lost]
    simulation.send_masked(rest, vectors)
    simulation.send_unmask(rest)
    return simulation, vectors


@pytest.mark.parametrize("owner", [3, 5], ids=["of-a-lost-client", "of-a-survivor"])
def test_a_false_share_is_a_named_error_and_never_a_wrong_sum(owner: int) -> None:
    """Rule 9: each single bit of the first share that counts, and of the owner's name in the error."""
    simulation, _ = finished()
    giver = simulation.roster.neighbours(owner)[0]
    near = [v for v in simulation.roster.neighbours(giver) if v in simulation.shared]
    start = SHARE * near.index(owner)
    honest = simulation.answers[giver]
    for bit in range(0, 130, 13):
        share = int.from_bytes(honest[start : start + SHARE], "big") ^ 1 << bit
        simulation.answers[giver] = honest[:start] + share.to_bytes(SHARE, "big") + honest[start + SHARE :]
        with pytest.raises(BadShare, match=f"slot {owner} in cohort c"):
            simulation.recover()


def test_a_share_of_the_wrong_kind_is_a_named_error() -> None:
    """Rule 9: the mask seed's share where the self seed's is due rebuilds no committed secret."""
    simulation, _ = finished(lost=())
    swapped = {slot: body[SHARE:] + body[:SHARE] for slot, body in simulation.answers.items()}
    simulation.answers = swapped
    with pytest.raises(BadShare):
        simulation.recover()


def test_a_false_commitment_is_a_named_error() -> None:
    simulation, _ = finished(lost=())
    simulation.shares[4] = bytes(32) + simulation.shares[4][32:]
    with pytest.raises(BadShare, match="slot 4"):
        simulation.recover()


def test_recovery_gives_the_same_sum_whichever_t_neighbours_answered() -> None:
    simulation, vectors = finished(n=60, lost=(3, 30))
    expected = honest_sum(vectors, [s for s in range(60) if s not in (3, 30)], 97)
    for seed in range(20):
        silent = random.Random(seed).sample(sorted(simulation.answers), 4)
        answers = {slot: body for slot, body in simulation.answers.items() if slot not in silent}
        assert replace(simulation, answers=answers).recover().tolist() == expected


def test_below_the_minimum_nothing_is_released_at_any_stage() -> None:
    """Rule 8."""
    cohort = make_cohort(24, 97, 1)
    assert protocol.least(cohort) == 22
    for stage in ("keys", "shares", "masked"):
        with pytest.raises(TooSmall, match="nothing is released"):
            play(enrol(cohort), unique(24, 1, 97), Departures(**{stage: range(3)}), range(24))


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
    """Rule 7: a vector that comes after the survivors were frozen keeps its self mask, whose seed nobody rebuilds."""
    simulation, vectors = finished(lost=(3,))
    members = simulation.bitmap(simulation.shared)
    simulation.masked[3] = simulation.clients[3].masked(vectors[3], members, simulation.inboxes[3])
    with pytest.raises(BadShare, match="slot 3"):
        simulation.recover()


def thin(threshold: int) -> Roster:
    """Forty clients on a ring of degree 4, whose minimum does not matter."""
    channel = Masking(modulus=97, dimension=1, neighbours=4, threshold=threshold)
    cohort = make_cohort(40, 97, 1)
    keys = {slot: client.keys() for slot, client in enrol(cohort).clients.items()}
    return protocol.build_roster(cohort.model_copy(update={"channel": channel, "minimum": 20}), keys)


def test_clients_that_nobody_could_rebuild_are_left_out_before_anyone_masks_with_them() -> None:
    roster = thin(threshold=2)
    missing = roster.neighbours(7)[:3]
    settled = protocol.settle_shared(roster, set(range(40)) - set(missing))
    assert 7 not in settled
    assert all(sum(v in settled for v in roster.neighbours(slot)) >= 2 for slot in settled)
    assert len(settled) >= 30


def test_survivors_too_thin_around_one_client_are_seen_before_anyone_is_asked() -> None:
    roster = thin(threshold=3)
    sharing = protocol.Sharing(roster, range(40))
    protocol.check_survivors(sharing, set(range(40)) - {roster.neighbours(7)[0]})
    with pytest.raises(TooSmall, match=r"2 survivors around slot \d+"):
        protocol.check_survivors(sharing, set(range(40)) - set(roster.neighbours(7)[:2]))


def test_an_inbox_holds_each_neighbours_box_in_neighbour_order() -> None:
    simulation, _ = finished(n=40, lost=())
    roster = simulation.roster
    for slot in roster.members:
        boxes = []
        for v in roster.neighbours(slot):
            start = 32 + 50 * roster.neighbours(v).index(slot)
            boxes.append(simulation.shares[v][start : start + 50])
        assert simulation.inboxes[slot] == b"".join(boxes)


@pytest.mark.parametrize(
    ("stage", "body"),
    [
        ("keys", b"\x09" * 63),
        ("keys", bytes(64)),
        ("shares", bytes(32 + 50 * 23 - 1)),
        ("shares", b""),
        ("masked", bytes(1)),
        ("masked", pack(np.array([97, 0], dtype=np.uint64), 128)),
        ("unmask", bytes(17 * 23 + 1)),
        ("unmask", b"\xff" * 17 * 23),
    ],
)
def test_a_body_of_the_wrong_size_or_range_is_refused(stage: str, body: bytes) -> None:
    simulation, _ = finished(lost=())
    checks: dict[str, Callable[[], None]] = {
        "keys": lambda: protocol.check_keys(body),
        "shares": lambda: protocol.check_shares(simulation.roster, 0, body),
        "masked": lambda: protocol.check_masked(simulation.cohort, body),
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


def test_a_client_that_refuses_is_one_lost_client() -> None:
    """A box that does not open makes its receiver refuse; the others go on."""
    simulation, vectors = enrol(make_cohort(24, 97, 1)), unique(24, 1, 97)
    simulation.send_keys(range(24))
    simulation.send_shares(range(24))
    simulation.inboxes[5] = simulation.inboxes[5][:-1] + bytes([simulation.inboxes[5][-1] ^ 1])
    with pytest.raises(Refused, match="does not open"):
        simulation.send_masked([5], vectors)
    rest = [slot for slot in range(24) if slot != 5]
    simulation.send_masked(rest, vectors)
    simulation.send_unmask(rest)
    assert simulation.recover().tolist() == honest_sum(vectors, rest, 97)
