"""Tests of the checks that a client makes before it answers a stage: one test for each promise."""

import gc
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distrust.client.cohort.secagg import MaskingClient, Secrets
from distrust.common.errors import BadMessage, Refused, WrongStage
from distrust.common.protocol.crypto.graph import Roster
from distrust.common.protocol.crypto.seal import BOX
from distrust.common.protocol.crypto.share import MISSING, PRIME, SHARE_SIZE
from distrust.lab.secagg_simulation import Simulation, enrol, make_cohort
from tests.support.masking_clients import EVERYONE, ONE, M, N, Story, after_masking, sharing, without

T = 12


def test_every_client_and_every_cohort_has_fresh_keys() -> None:
    cohort = make_cohort(N, M, 1)
    keys = [client.keys() for _ in range(2) for client in enrol(cohort).clients.values()]
    halves = [key[:32] for key in keys] + [key[32:] for key in keys]
    assert len(set(halves)) == 4 * N


def test_a_repeat_of_the_same_request_gets_the_same_bytes_in_every_stage(stage: Simulation) -> None:
    story = Story(stage)
    assert story.client.keys() == stage.keys[0]
    assert story.client.shares(stage.roster, stage.published) == stage.shares[0]
    for answer in (story.confirm, story.masked, story.unmask):
        assert answer() == answer()


def test_two_different_unmask_requests_are_never_both_answered(stage: Simulation) -> None:
    """Two requests could ask for both seeds of a neighbour, or for two sums that differ in one client."""
    story = after_masking(stage)
    first = story.unmask()
    with pytest.raises(Refused, match="another request of stage unmask"):
        story.unmask(stage.bitmap(without(5)))
    assert story.unmask() == first


def test_two_different_rosters_challenges_or_vectors_are_never_both_answered(stage: Simulation) -> None:
    keys = {**stage.keys, 1: enrol(stage.cohort).clients[1].keys()}
    other = Roster(stage.cohort, stage.roster.bitmap, b"".join(keys[slot] for slot in EVERYONE))
    with pytest.raises(Refused, match="stage shares"):
        stage.clients[0].shares(other, stage.published)
    story = Story(stage)
    story.confirm()
    with pytest.raises(Refused, match="stage confirm"):
        story.confirm(challenge=bytes(32))
    story.confirm()
    story.masked()
    with pytest.raises(Refused, match="stage masked"):
        story.masked(vector=ONE + np.uint64(1))


def test_a_refused_request_is_not_an_answer_and_a_right_one_may_follow(stage: Simulation) -> None:
    story = Story(stage)
    story.confirm()
    with pytest.raises(Refused):
        story.masked(stage.bitmap(without(0)))
    assert story.masked()


def test_no_stage_is_answered_without_the_statement_that_the_server_published_for_all(stage: Simulation) -> None:
    """All clients that answer were told the same. A refused statement leaves the stage open for the right one."""
    story = Story(stage)
    everyone = stage.bitmap(EVERYONE)
    for wrong in (b"", bytes(32)):
        with pytest.raises(Refused, match="stage confirm: what slot 0 was told"):
            story.client.confirm(everyone, stage.challenge, stage.inboxes[0], wrong)
    story.confirm()
    with pytest.raises(Refused, match="stage masked: what slot 0 was told"):
        story.client.masked(ONE, everyone, story.statement)
    story.masked()
    with pytest.raises(Refused, match="stage unmask: what slot 0 was told"):
        story.client.unmask(everyone, story.after)
    assert story.unmask()


def test_the_confirmation_opens_the_blinded_polynomial_and_agrees_with_what_neighbours_hold(stage: Simulation) -> None:
    """p(x) = γ1·f1 + γ2·f2 + r: what slot 1 shows of itself is what slot 0 shows of the share it got from slot 1."""
    first, second = (Story(stage, slot).confirm() for slot in (0, 1))
    p = [int.from_bytes(second[SHARE_SIZE * i : SHARE_SIZE * i + SHARE_SIZE], "big") for i in range(T)]
    place = stage.roster.neighbours(0).index(1)
    shown = int.from_bytes(first[SHARE_SIZE * (T + place) : SHARE_SIZE * (T + place + 1)], "big")
    point = 1 + stage.roster.neighbours(1).index(0)
    assert shown == sum(c * pow(point, i, PRIME) for i, c in enumerate(p)) % PRIME
    assert len(first) == SHARE_SIZE * (T + N - 1)


def test_the_confirmation_says_nothing_of_the_seeds() -> None:
    """In fifty cohorts with equal seed and challenge the constant of the blinded polynomial never repeats."""
    seen = set()
    for _ in range(50):
        simulation = enrol(make_cohort(4, M, 1))
        secrets = simulation.clients[0]._secrets
        assert secrets is not None
        secrets.self_seed, simulation.challenge = bytearray(16), bytes(32)
        simulation.send_keys(range(4))
        simulation.send_shares(range(4))
        seen.add(Story(simulation).confirm()[:SHARE_SIZE])
    assert len(seen) == 50


def test_everything_is_forgotten_after_the_answer(stage: Simulation) -> None:
    """No object that holds the keys, seeds or shares is left, and their buffers are zeros.

    Only the last answer may be repeated.
    """
    story = after_masking(stage)
    secrets = story.client._secrets
    assert secrets is not None
    buffers = [secrets.self_seed, secrets.mask_seed, *filter(None, secrets.held.values())]
    known = set(map(bytes, buffers))
    assert len(known) == 2 + N - 1
    answer = story.unmask()
    assert not known & set(reachable(story.client))
    assert not any(map(any, buffers))
    assert (secrets.mask_pair, secrets.channel_pair) == (None, None)
    assert story.unmask() == answer
    calls = (story.client.keys, lambda: story.client.shares(stage.roster, stage.published), story.confirm, story.masked)
    for again in calls:
        with pytest.raises(Refused, match="forgotten"):
            again()


def test_polynomials_and_channel_keys_are_forgotten_once_confirmed(stage: Simulation) -> None:
    secrets = stage.clients[0]._secrets
    assert secrets is not None
    keys = list(secrets.channel_keys.values())
    assert all(map(any, keys))
    Story(stage).confirm()
    assert (secrets.polynomials, secrets.channel_keys) == (None, {})
    assert len(keys) == N - 1
    assert not any(map(any, keys))


def test_shares_of_clients_that_were_lost_are_zeroed_with_the_mask(stage: Simulation) -> None:
    story = Story(stage)
    story.confirm()
    secrets = story.client._secrets
    assert secrets is not None
    gone = secrets.held[1]
    assert gone is not None
    assert any(gone)
    story.masked(stage.bitmap(without(1)))
    assert not any(gone)
    assert sorted(secrets.held) == without(0, 1)


def reachable(root: object) -> Iterator[bytes]:
    """Yield all bytes, and copies of buffers, that can be reached from `root` without passing through modules."""
    seen, todo = {id(root)}, [root]
    while todo:
        for other in gc.get_referents(todo.pop()):
            if id(other) not in seen and not isinstance(other, type) and "module" not in type(other).__name__:
                seen.add(id(other))
                todo.append(other)
                if isinstance(other, bytes | bytearray):
                    yield bytes(other)


def test_a_timeout_forgets_before_anything_is_revealed(stage: Simulation) -> None:
    story = after_masking(stage)
    story.client.forget()
    with pytest.raises(Refused, match="forgotten"):
        story.unmask()


def test_secrets_do_not_show_when_printed(stage: Simulation) -> None:
    client = stage.clients[0]
    assert repr(client) == "MaskingClient(cohort='c', slot=0, secrets=…)"
    assert repr(client._secrets) == "Secrets(…)"


def test_stages_come_in_order(stage: Simulation) -> None:
    fresh = MaskingClient(stage.cohort, 0, Secrets(), min_survivors=1, dropout=0.1, corrupt=0.1)
    everyone = stage.bitmap(EVERYONE)
    with pytest.raises(WrongStage):
        fresh.shares(stage.roster, stage.published)
    with pytest.raises(WrongStage):
        fresh.confirm(everyone, stage.challenge, stage.inboxes[0], stage.statements["confirm"])
    with pytest.raises(WrongStage):
        stage.clients[0].masked(ONE, everyone, bytes(32))
    with pytest.raises(WrongStage):
        stage.clients[0].unmask(everyone, bytes(32))


def test_a_box_that_does_not_open_is_a_missing_share_and_the_client_goes_on(stage: Simulation) -> None:
    """Changed boxes, boxes for another slot: 0xff in both answers, at the sender's place."""
    inbox = stage.inboxes[0]
    swapped = inbox[BOX : 2 * BOX] + inbox[:BOX] + inbox[2 * BOX : -1] + bytes([inbox[-1] ^ 1])
    story = Story(stage)
    body = story.confirm(inbox=swapped)
    entries = [body[i : i + SHARE_SIZE] for i in range(SHARE_SIZE * T, len(body), SHARE_SIZE)]
    assert [i for i, entry in enumerate(entries) if entry == MISSING] == [0, 1, N - 2]
    story.masked()
    answer = story.unmask()
    shares = [answer[i : i + SHARE_SIZE] for i in range(0, len(answer), SHARE_SIZE)]
    assert [i for i, share in enumerate(shares) if share == MISSING] == [0, 1, N - 2]


# What survivors must be.


@pytest.mark.parametrize(
    ("survivors", "why"),
    [
        pytest.param(without(0), "lack slot 0", id="without-itself"),
        pytest.param(without(5, 6, 7), "insists on 22", id="below-the-minimum"),
        pytest.param([], "lack slot 0", id="no-survivors"),
    ],
)
def test_survivors_must_hold_itself_and_be_enough(stage: Simulation, survivors: list[int], why: str) -> None:
    story = after_masking(stage)
    with pytest.raises(Refused, match=why):
        story.unmask(stage.bitmap(survivors))


def test_survivors_must_be_members(stage: Simulation) -> None:
    story = Story(stage)
    story.confirm()
    story.masked(stage.bitmap(without(9)))
    with pytest.raises(Refused, match="not there in the stage before"):
        story.unmask(stage.bitmap(EVERYONE))


def test_survivors_must_keep_the_clients_own_floor_whatever_the_cohort_says() -> None:
    simulation = sharing(min_survivors=24)
    story = after_masking(simulation)
    with pytest.raises(Refused, match="insists on 24"):
        story.unmask(simulation.bitmap(without(5)))
    assert story.unmask()


@pytest.fixture(scope="module")
def ring() -> Simulation:
    """Return a hundred clients on a ring: k = 38, t = 20, w = 9."""
    return sharing(100)


def test_survivors_must_leave_t_neighbours_to_every_member_alive_or_lost(ring: Simulation) -> None:
    """The ten that may vanish are neighbours of slot 7, and it had lost nine before the members were named."""
    near = [v for v in ring.roster.neighbours(7) if v != 0]
    members = [s for s in range(100) if s not in near[:9]]
    story = Story(ring)
    story.client._min_survivors = 80
    story.confirm()
    story.masked(ring.bitmap(members))
    with pytest.raises(Refused, match=r"neighbours of slot \d+ are left, and t = 20"):
        story.unmask(ring.bitmap([s for s in members if s not in near[9:19]]))


def test_lost_clients_must_not_lie_densely_on_the_ring(ring: Simulation) -> None:
    """Ten of 19 consecutive places are more than chance explains; nine are taken."""
    order = [int(ring.roster.slots[row]) for row in ring.roster.ring]
    start = order.index(1)
    block = [order[(start + i) % 100] for i in range(1, 30)]
    gone = [slot for slot in block if slot != 1][:10]
    story = after_masking(ring, 1)
    with pytest.raises(Refused, match="10 lost clients lie in consecutive places of the ring, and 9 may"):
        story.unmask(ring.bitmap([s for s in range(100) if s not in gone]))
    assert story.unmask(ring.bitmap([s for s in range(100) if s not in gone[:9]]))


@settings(deadline=None, max_examples=15)
@given(st.sets(st.integers(1, N - 1), max_size=2))
def test_exactly_one_kind_of_share_is_revealed_for_each_neighbour(lost: set[int]) -> None:
    simulation = sharing()
    story = after_masking(simulation)
    secrets = story.client._secrets
    assert secrets is not None
    held = {slot: pair and bytes(pair) for slot, pair in secrets.held.items()}
    answer = story.unmask(simulation.bitmap(without(*lost)))
    assert len(answer) == SHARE_SIZE * (N - 1)
    for i, (neighbour, pair) in enumerate(held.items()):
        assert pair is not None
        due, kept = (
            (pair[SHARE_SIZE:], pair[:SHARE_SIZE]) if neighbour in lost else (pair[:SHARE_SIZE], pair[SHARE_SIZE:])
        )
        assert answer[SHARE_SIZE * i : SHARE_SIZE * i + SHARE_SIZE] == due
        assert kept not in answer


@pytest.mark.parametrize("bitmap", [b"", b"\xff" * 4, b"\xff" * 2], ids=["empty", "long", "short"])
def test_a_bitmap_of_another_size_is_refused(stage: Simulation, bitmap: bytes) -> None:
    story = after_masking(stage)
    with pytest.raises(BadMessage, match="bitmap"):
        story.unmask(bitmap)
