"""Tests that a lying client loses only its own value: the sum is right, and no honest client is named."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distrust.aggregator import protocol
from distrust.aggregator.confirmation import name_liars, tell_liars
from distrust.common.errors import BadShare, TooSmall
from distrust.common.modular import Vector
from distrust.common.protocol.crypto.share import PRIME, SHARE_SIZE
from distrust.lab.secagg_simulation import Simulation, enrol, make_cohort
from tests.support.lying_clients import MISSING, Lies

MODULUS = 2**62 - 57


def values(n: int) -> Vector:
    """Return 2^i mod m for client i, so that each loss or double count shows."""
    return np.array([[pow(2, i, MODULUS)] for i in range(n)], dtype=np.uint64)


def total(slots: Sequence[int]) -> int:
    return sum(pow(2, slot, MODULUS) for slot in slots) % MODULUS


def shared(n: int, **rates: float) -> tuple[Simulation, Lies]:
    simulation = enrol(make_cohort(n, MODULUS, 1, **rates), **rates)
    simulation.send_keys(range(n))
    simulation.send_shares(range(n))
    return simulation, Lies(simulation)


def confirmed(n: int, **rates: float) -> tuple[Simulation, Lies]:
    simulation, lies = shared(n, **rates)
    simulation.send_confirm(simulation.shared)
    return simulation, lies


def answered(simulation: Simulation, lost: Sequence[int] = ()) -> Simulation:
    stay = [slot for slot in simulation.members if slot not in lost]
    simulation.send_masked(stay, values(simulation.cohort.clients))
    simulation.send_unmask(stay)
    return simulation


def named_at_confirm(simulation: Simulation) -> list[int]:
    roster = simulation.roster
    return list(roster.slots[name_liars(simulation.sharing, simulation.verdict.disputed)])


DEALING = ("rubbish boxes", "rubbish shares", "two polynomials", "another polynomial")
HOLDING = ("accuses", "denies", "false shares", "withholds")


@settings(deadline=None, max_examples=20)
@given(st.integers(10, 32), st.randoms(use_true_random=False))
def test_liars_of_every_kind_and_dropouts_together_change_no_sum_and_no_victim_is_named(
    n: int, chance: random.Random
) -> None:
    """Full graph, ten and ten percent. Up to ⌊cn⌋ lie, as dealers, as holders, or as both, about as many as they like.

    A dealer that is left out counts as lost: with the dropouts they are ⌊dn⌋ at most.
    """
    simulation, lies = shared(n)
    liars = chance.sample(range(n), chance.randint(1, n // 10))
    dealers = chance.sample(liars, chance.randint(0, len(liars)))
    lost = chance.sample([s for s in range(n) if s not in liars], chance.randint(0, n // 10 - len(dealers)))
    certain: set[int] = set()
    showing: list[int] = []
    for slot in dealers:
        kind, holders = chance.choice(DEALING), lies.holders(slot, chance.randint(1, n - 1), chance)
        if kind == "another polynomial":
            showing.append(slot)
            certain.add(slot)
            continue
        tell = {
            "rubbish boxes": lies.send_rubbish,
            "rubbish shares": lies.deal_rubbish,
            "two polynomials": lies.deal_two_polynomials,
        }[kind]
        tell(slot, holders)
        if lies.threshold <= len(holders) and len(holders) < n - lies.threshold:
            certain.add(slot)
    simulation.settle(simulation.roster)
    simulation.send_confirm(simulation.shared)
    for slot in showing:
        lies.show_another_polynomial(slot)
    kinds = {slot: chance.choice(HOLDING) for slot in liars}
    about = {slot: lies.holders(slot, chance.randint(1, n - 1), chance) for slot in liars}
    for slot, kind in kinds.items():
        if kind in {"accuses", "denies"}:
            lies.accuse(slot, about[slot], MISSING if kind == "denies" else None)
            if len(about[slot]) >= lies.threshold:
                certain.add(slot)
    simulation.judge()
    answered(simulation, lost)
    for slot, kind in kinds.items():
        if kind in {"false shares", "withholds"} and slot in simulation.answers:
            lies.return_false_shares(slot, about[slot], MISSING if kind == "withholds" else None)
    result = simulation.release()
    survivors = list(simulation.masked)
    assert set(range(n)) - set(survivors) <= set(dealers) | set(lost)
    assert result.total.tolist() == [total(survivors)]
    assert certain <= set(result.liars) <= set(liars)


@pytest.mark.parametrize("seed", [1, 2])
def test_on_a_ring_a_tenth_of_liars_and_a_tenth_of_dropouts_change_no_sum(seed: int) -> None:
    """k = 38, t = 20. Each liar deals a few bad boxes, accuses a few dealers, and returns only false shares."""
    chance, n = random.Random(seed), 100
    simulation, lies = shared(n)
    mixed = chance.sample(range(n), 20)
    liars, lost = mixed[:10], mixed[10:]
    for slot in liars:
        lies.send_rubbish(slot, lies.holders(slot, 2, chance))
    simulation.settle(simulation.roster)
    simulation.send_confirm(simulation.shared)
    for slot in liars:
        lies.accuse(slot, lies.holders(slot, 2, chance))
    simulation.judge()
    assert len(simulation.members) == n
    answered(simulation, lost)
    for slot in liars:
        lies.return_false_shares(slot, simulation.roster.neighbours(slot))
    result = simulation.release()
    assert result.total.tolist() == [total([s for s in range(n) if s not in lost])]
    assert result.liars == tuple(sorted(liars))


@pytest.mark.parametrize("kind", ["rubbish boxes", "rubbish shares"])
def test_a_dealer_whose_shares_are_all_bad_is_left_out_and_named(kind: str) -> None:
    simulation, lies = shared(24)
    tell = lies.send_rubbish if kind == "rubbish boxes" else lies.deal_rubbish
    tell(5, simulation.roster.neighbours(5))
    simulation.settle(simulation.roster)
    simulation.send_confirm(simulation.shared)
    assert set(simulation.members) == set(range(24)) - {5}
    assert named_at_confirm(simulation) == [5]
    assert answered(simulation).release().liars == (5,)


@pytest.mark.parametrize("bad", [1, 3, 7, 8, 12, 16, 22])
def test_a_dealer_with_shares_off_its_polynomial_is_left_out_or_can_be_rebuilt_whichever_are_lost(bad: int) -> None:
    """n = 24, t = 12. Two losses and B = 4 liars among its neighbours are made up for, so it needs 18 good shares."""
    chance = random.Random(bad)
    simulation, lies = shared(24)
    wrong = lies.holders(5, bad, chance)
    lies.deal_rubbish(5, wrong)
    simulation.settle(simulation.roster)
    simulation.send_confirm(simulation.shared)
    assert (5 in simulation.members) == (bad <= 5)
    lost = [slot for slot in range(24) if slot not in wrong and slot != 5][: 2 if bad <= 5 else 1]
    result = answered(simulation, lost).release()
    assert result.total.tolist() == [total(sorted(simulation.masked))]
    assert set(result.liars) == ({5} if bad >= 12 else set())
    assert result.disputes == (0 if bad >= 12 else bad)


@pytest.mark.parametrize("other", [11, 12])
def test_a_dealer_of_two_polynomials_is_bound_to_the_one_that_it_shows(other: int) -> None:
    """Each half of the neighbours holds shares that fit together. Those that do not fit what it shows do not count."""
    simulation, lies = shared(24)
    holders = simulation.roster.neighbours(5)[:other]
    lies.deal_two_polynomials(5, holders)
    simulation.settle(simulation.roster)
    simulation.send_confirm(simulation.shared)
    row = simulation.roster.index(5)
    trusted = [v for v, ok in zip(simulation.roster.neighbours(5), simulation.verdict.trusted[row], strict=True) if ok]
    assert trusted == [v for v in simulation.roster.neighbours(5) if v not in holders]
    assert 5 not in simulation.members


@pytest.mark.parametrize("lost", [(), (3,)])
@pytest.mark.parametrize("owner", [3, 5])
def test_one_false_share_names_the_neighbour_that_returned_it(owner: int, lost: tuple[int, ...]) -> None:
    """Of a survivor's self seed, of a lost client's mask key seed; it was the owner that was named once."""
    simulation, lies = confirmed(24)
    answered(simulation, lost)
    liar = simulation.roster.neighbours(owner)[0]
    lies.return_false_shares(liar, [owner])
    result = simulation.release()
    assert result.total.tolist() == [total(sorted(simulation.masked))]
    assert (result.liars, result.disputes) == ((liar,), 0)


def test_a_share_of_the_wrong_kind_names_the_neighbour_that_returned_it() -> None:
    """The mask key seed's share where the self seed's is due."""
    simulation, _ = confirmed(24)
    secrets = simulation.clients[7]._secrets
    assert secrets is not None
    wrong = b"".join(pair[SHARE_SIZE:] for pair in secrets.held.values() if pair is not None)
    answered(simulation)
    simulation.answers[7] = wrong
    result = simulation.release()
    assert (result.total.tolist(), result.liars) == ([total(range(24))], (7,))


def test_a_share_that_was_confirmed_and_is_withheld_names_its_holder() -> None:
    simulation, lies = confirmed(24)
    answered(simulation)
    lies.return_false_shares(7, [3], MISSING)
    assert simulation.release().liars == (7,)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_where_one_word_stands_against_another_no_client_is_named(n: int) -> None:
    """t = 1 or 2: slot 0 says that the share of slot 1 is false. Either may lie."""
    simulation, lies = confirmed(n, dropout=0.0, corrupt=0.0)
    lies.accuse(0, [1])
    verdict = protocol.judge_shares(simulation.sharing, simulation.confirmed)
    assert not name_liars(simulation.sharing, verdict.disputed).any()
    assert verdict.disputed.sum() == 1


@pytest.mark.parametrize("count", [11, 12])
def test_t_disputes_of_one_client_prove_that_it_lied_and_t_minus_one_prove_nothing(count: int) -> None:
    """n = 24, t = 12: `count` holders contradict dealer 0, and holder 23 contradicts `count` dealers, none twice."""
    simulation, lies = confirmed(24)
    for slot in range(1, count + 1):
        lies.accuse(slot, [0])
    lies.accuse(23, range(1, count + 1))
    verdict = protocol.judge_shares(simulation.sharing, simulation.confirmed)
    named = simulation.roster.slots[name_liars(simulation.sharing, verdict.disputed)]
    assert verdict.disputed.sum() == 2 * count
    assert list(named) == ([0, 23] if count == lies.threshold else [])


def test_a_victim_of_fewer_than_t_accusers_stays_and_is_not_named() -> None:
    """n = 24, t = 12: five accuse slot 9, and all others; they are named, and it is not."""
    simulation, lies = confirmed(24)
    accusers = [1, 2, 3, 4, 5]
    for slot in accusers:
        lies.accuse(slot, [v for v in simulation.roster.neighbours(slot) if v not in accusers])
    simulation.judge()
    assert named_at_confirm(simulation) == accusers
    assert simulation.members == tuple(range(24))
    result = answered(simulation).release()
    assert (result.total.tolist(), result.liars, result.disputes) == ([total(range(24))], tuple(accusers), 0)


def test_a_dealer_and_its_friends_cannot_make_honest_neighbours_look_false() -> None:
    """Slot 5 and four friends return shares of a polynomial that ten honest neighbours' shares are on as well.

    Six honest neighbours are not heard, and the two that are left contradict fourteen. They are right: the secret is
    the one committed to either way, and no client is named for that pair.
    """
    simulation, _ = confirmed(24, dropout=0.0, corrupt=0.2)
    answered(simulation)
    near = simulation.roster.neighbours(5)
    friends, kept, right = near[:4], near[4:14], near[14:16]
    for slot in friends:
        place = simulation.roster.neighbours(slot).index(5)
        body = simulation.answers[slot]
        false = on_another_polynomial(
            body[SHARE_SIZE * place : SHARE_SIZE * place + SHARE_SIZE], near.index(slot) + 1, range(5, 15)
        )
        simulation.answers[slot] = body[: SHARE_SIZE * place] + false + body[SHARE_SIZE * place + SHARE_SIZE :]
    heard = {*friends, *kept, *right, 5}
    simulation.answers = {slot: body for slot, body in simulation.answers.items() if slot in heard}
    result = simulation.release()
    assert result.total.tolist() == [total(range(24))]
    assert (result.liars, result.disputes) == ((), 2)


def on_another_polynomial(share: bytes, point: int, kept: Sequence[int]) -> bytes:
    """Return the share of f(x) + x·Π (x - x_j): it has f's constant, and f's shares at the points `kept`."""
    shift = point
    for x in kept:
        shift = shift * (point - x) % PRIME
    return ((int.from_bytes(share, "big") + shift) % PRIME).to_bytes(SHARE_SIZE, "big")


def test_a_dealer_of_another_seed_than_it_committed_to_ends_the_cohort_and_is_named() -> None:
    """The confirmation cannot detect this lie: all shares are consistent, and the commitment is of another seed."""
    simulation, _ = shared(24)
    simulation.shares[5] = bytes(32) + simulation.shares[5][32:]
    simulation.send_confirm(simulation.shared)
    answered(simulation)
    with pytest.raises(BadShare, match="slot 5 in cohort c dealt shares of another self seed than it committed to"):
        simulation.release()


def test_a_dealer_of_another_seed_is_not_called_a_liar_where_its_holders_may_be() -> None:
    """n = 24, t = 12, B = 4: with 16 shares or fewer that agree, twelve honest ones among them are not certain."""
    simulation, lies = confirmed(24)
    simulation.shares[5] = bytes(32) + simulation.shares[5][32:]
    answered(simulation)
    for slot in simulation.roster.neighbours(5)[:7]:
        lies.return_false_shares(slot, [5])
    with pytest.raises(BadShare, match=r"slot 5 in cohort c cannot be rebuilt: .*; slot 5 lied, or its holders did$"):
        simulation.release()


@pytest.mark.parametrize(("false", "says"), [(3, "dealt shares of another self seed"), (4, "cannot be rebuilt: ")])
def test_t_and_b_shares_that_agree_prove_nothing_of_their_dealer_and_one_more_does(false: int, says: str) -> None:
    """n = 24, t = 12, B = 4: of 20 shares that are heard 17 or 16 agree on a seed that slot 5 did not commit to."""
    simulation, lies = confirmed(24)
    simulation.shares[5] = bytes(32) + simulation.shares[5][32:]
    answered(simulation)
    near = simulation.roster.neighbours(5)
    for slot in near[:false]:
        lies.return_false_shares(slot, [5])
    simulation.answers = {slot: body for slot, body in simulation.answers.items() if slot not in near[-3:]}
    with pytest.raises(BadShare, match=f"slot 5 in cohort c {says}"):
        simulation.release()


@pytest.mark.parametrize("kind", ["rubbish boxes", "rubbish shares"])
def test_dealers_that_end_a_cohort_are_named_in_its_error(kind: str) -> None:
    """Three of 24 are one more than may be lost."""
    simulation, lies = shared(24)
    for slot in (3, 5, 19):
        tell = lies.send_rubbish if kind == "rubbish boxes" else lies.deal_rubbish
        tell(slot, simulation.roster.neighbours(slot))
    simulation.settle(simulation.roster)
    with pytest.raises(TooSmall) as error:
        simulation.send_confirm(simulation.shared)
    confirmed_by = "21 clients whose shares were confirmed, at least 22 needed: nothing is released"
    assert error.value.detail == f"{confirmed_by}; clients that lied: slots 3, 5, 19"


def test_accusers_that_end_a_cohort_are_named_and_their_victims_are_not() -> None:
    """Slots 1 to 5 accuse all clients; slots 10, 11 and 12 are never heard again."""
    simulation, lies = shared(24)
    accusers = [1, 2, 3, 4, 5]
    heard = [slot for slot in range(24) if slot not in (10, 11, 12)]
    with pytest.raises(TooSmall):
        simulation.send_confirm(heard)
    for slot in accusers:
        lies.accuse(slot, [v for v in simulation.roster.neighbours(slot) if v not in accusers])
    with pytest.raises(TooSmall, match=r"clients that lied: slots 1, 2, 3, 4, 5$"):
        simulation.judge()


def test_an_accuser_is_named_where_another_client_ends_the_cohort() -> None:
    simulation, lies = confirmed(24)
    simulation.shares[5] = bytes(32) + simulation.shares[5][32:]
    lies.accuse(7, [v for v in range(24) if v not in (5, 7)])
    simulation.judge()
    answered(simulation)
    with pytest.raises(BadShare, match=r"slot 5 .* than it committed to; clients that lied: slots 7$"):
        simulation.release()


def test_an_error_lists_twenty_liars_and_counts_the_others() -> None:
    """Two clients that contradict each other are a disputed pair; a pair with a named liar in it is none."""
    simulation, _ = confirmed(32)
    named, disputed = np.zeros(32, dtype=np.bool_), np.zeros((32, 31), dtype=np.bool_)
    disputed[30, simulation.roster.neighbours(30).index(31)] = disputed[30, 0] = True
    named[:25] = True
    slots = ", ".join(map(str, range(20)))
    expected = f"; clients that lied: slots {slots} and 5 more; 1 disputed pairs"
    assert tell_liars(simulation.sharing, named, disputed) == expected
    assert tell_liars(simulation.sharing, ~np.ones(32, dtype=np.bool_), disputed & False) == ""


def test_a_secret_that_cannot_be_rebuilt_is_a_named_error_and_never_a_wrong_sum() -> None:
    """Twelve of 23 return false shares of slot 5, more than the cohort was built for: no client is called a liar."""
    simulation, lies = confirmed(24)
    answered(simulation)
    for slot in simulation.roster.neighbours(5)[:12]:
        lies.return_false_shares(slot, [5])
    with pytest.raises(BadShare, match="the self seed of slot 5 in cohort c cannot be rebuilt: no 12 of the 23 shares"):
        simulation.release()
