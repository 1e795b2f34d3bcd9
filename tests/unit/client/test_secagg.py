"""What a client insists on before it answers: one test for each promise."""

import gc
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.secagg import MaskingClient
from common.crypto.graph import KEYS, Roster
from common.crypto.share import SHARE
from common.errors import BadMessage, BadParameter, Refused, WrongStage
from common.messages.cohort import Masking
from common.modular import Vector
from lab.secagg_simulation import Simulation, enrol, make_cohort

N, M = 24, 1009
EVERYONE = range(N)
ONE = np.array([1], dtype=np.uint64)


def without(*slots: int) -> list[int]:
    return [slot for slot in EVERYONE if slot not in slots]


@pytest.fixture
def stage() -> Simulation:
    """A cohort that has shared; every client may send its vector."""
    simulation = enrol(make_cohort(N, M, 1))
    simulation.send_keys(EVERYONE)
    simulation.send_shares(EVERYONE)
    return simulation


def masked(simulation: Simulation, slot: int = 0, members: bytes | None = None, inbox: bytes | None = None) -> bytes:
    return simulation.clients[slot].masked(
        ONE,
        simulation.bitmap(simulation.shared) if members is None else members,
        simulation.inboxes[slot] if inbox is None else inbox,
    )


def test_every_client_and_every_cohort_has_fresh_keys() -> None:
    """Rule 4."""
    cohort = make_cohort(N, M, 1)
    keys = [client.keys() for _ in range(2) for client in enrol(cohort).clients.values()]
    halves = [key[:32] for key in keys] + [key[32:] for key in keys]
    assert len(set(halves)) == 4 * N


def test_a_repeat_of_the_same_request_gets_the_same_bytes_in_every_stage(stage: Simulation) -> None:
    """Rule 4."""
    client = stage.clients[0]
    assert client.keys() == stage.keys[0]
    assert client.shares(stage.roster) == stage.shares[0]
    assert masked(stage) == masked(stage)
    survivors = stage.bitmap(EVERYONE)
    assert client.unmask(survivors) == client.unmask(survivors)


def test_two_different_unmask_requests_are_never_both_answered(stage: Simulation) -> None:
    """Rule 4: otherwise both seeds of a neighbour, or two sums that differ in one client, could be asked for."""
    masked(stage)
    first = stage.clients[0].unmask(stage.bitmap(EVERYONE))
    with pytest.raises(Refused, match="another request of stage unmask"):
        stage.clients[0].unmask(stage.bitmap(without(5)))
    assert stage.clients[0].unmask(stage.bitmap(EVERYONE)) == first


def test_two_different_rosters_or_vectors_are_never_both_answered(stage: Simulation) -> None:
    keys = {**stage.keys, 1: enrol(stage.cohort).clients[1].keys()}
    other = Roster(stage.cohort, stage.roster.bitmap, b"".join(keys[slot] for slot in EVERYONE))
    with pytest.raises(Refused, match="stage shares"):
        stage.clients[0].shares(other)
    masked(stage)
    with pytest.raises(Refused, match="stage masked"):
        stage.clients[0].masked(ONE + np.uint64(1), stage.bitmap(EVERYONE), stage.inboxes[0])


def test_a_refused_request_is_not_an_answer_and_a_right_one_may_follow(stage: Simulation) -> None:
    with pytest.raises(Refused):
        masked(stage, members=stage.bitmap(without(0)))
    assert masked(stage)


def test_everything_is_forgotten_after_the_answer(stage: Simulation) -> None:
    """Rule 4: no object that holds the keys, seeds or shares is left; only the last answer may be repeated."""
    client = stage.clients[0]
    masked(stage)
    secrets = client._secrets
    assert secrets is not None
    known = {secrets.self_seed, secrets.mask_seed, *secrets.held.values()}
    del secrets
    answer = client.unmask(stage.bitmap(EVERYONE))
    left = set(reachable(client))
    assert not left & known
    assert client.unmask(stage.bitmap(EVERYONE)) == answer
    for again in (client.keys, lambda: client.shares(stage.roster), lambda: masked(stage)):
        with pytest.raises(Refused, match="forgotten"):
            again()


def reachable(root: object) -> Iterator[bytes]:
    """Every bytes object that can be reached from `root` without passing through modules or classes."""
    seen, todo = {id(root)}, [root]
    while todo:
        for other in gc.get_referents(todo.pop()):
            if id(other) not in seen and not isinstance(other, type) and "module" not in type(other).__name__:
                seen.add(id(other))
                todo.append(other)
                if isinstance(other, bytes):
                    yield other


def test_a_timeout_forgets_before_anything_is_revealed(stage: Simulation) -> None:
    masked(stage)
    stage.clients[0].forget()
    with pytest.raises(Refused, match="forgotten"):
        stage.clients[0].unmask(stage.bitmap(EVERYONE))


def test_secrets_do_not_show_when_printed(stage: Simulation) -> None:
    client = stage.clients[0]
    assert repr(client) == "MaskingClient(cohort='c', slot=0, secrets=…)"
    assert repr(client._secrets) == "Secrets(…)"


def test_stages_come_in_order(stage: Simulation) -> None:
    fresh = MaskingClient(stage.cohort, 0, floor=1, dropout=0.1, corrupt=0.1)
    with pytest.raises(WrongStage):
        fresh.shares(stage.roster)
    with pytest.raises(WrongStage):
        fresh.masked(ONE, stage.bitmap(EVERYONE), stage.inboxes[0])
    with pytest.raises(WrongStage):
        stage.clients[0].unmask(stage.bitmap(EVERYONE))


# Rule 5: what survivors must be.


@pytest.mark.parametrize(
    ("survivors", "why"),
    [
        pytest.param(without(0), "lack slot 0", id="without-itself"),
        pytest.param(without(5, 6, 7), "insists on 22", id="below-the-minimum"),
        pytest.param([], "lack slot 0", id="nobody"),
    ],
)
def test_survivors_must_hold_itself_and_be_enough(stage: Simulation, survivors: list[int], why: str) -> None:
    masked(stage)
    with pytest.raises(Refused, match=why):
        stage.clients[0].unmask(stage.bitmap(survivors))


def test_survivors_must_have_shared(stage: Simulation) -> None:
    client = stage.clients[0]
    members = without(9)
    position = stage.roster.neighbours(0).index(9)
    inbox = stage.inboxes[0][: 50 * position] + stage.inboxes[0][50 * position + 50 :]
    masked(stage, members=stage.bitmap(members), inbox=inbox)
    with pytest.raises(Refused, match="not there in the stage before"):
        client.unmask(stage.bitmap(EVERYONE))


def test_survivors_must_keep_the_clients_own_floor_whatever_the_cohort_says() -> None:
    simulation = enrol(make_cohort(N, M, 1), floor=24)
    simulation.send_keys(EVERYONE)
    simulation.send_shares(EVERYONE)
    masked(simulation)
    with pytest.raises(Refused, match="insists on 24"):
        simulation.clients[0].unmask(simulation.bitmap(without(5)))
    assert simulation.clients[0].unmask(simulation.bitmap(EVERYONE))


def test_fewer_than_t_neighbours_left_is_refused() -> None:
    """A hundred clients, k = 20, t = 11, and the ten that may vanish all vanish around slot 0."""
    simulation = enrol(make_cohort(100, M, 1))
    simulation.send_keys(range(100))
    simulation.send_shares(range(100))
    gone = simulation.roster.neighbours(0)[:10]
    masked(simulation)
    with pytest.raises(Refused, match="10 neighbours of slot 0 are left, and t = 11"):
        simulation.clients[0].unmask(simulation.bitmap([s for s in range(100) if s not in gone]))


@settings(deadline=None, max_examples=25)
@given(st.sets(st.integers(1, N - 1), max_size=2))
def test_exactly_one_kind_of_share_is_revealed_for_each_neighbour(lost: set[int]) -> None:
    simulation = enrol(make_cohort(N, M, 1))
    simulation.send_keys(EVERYONE)
    simulation.send_shares(EVERYONE)
    masked(simulation)
    secrets = simulation.clients[0]._secrets
    assert secrets is not None
    held = dict(secrets.held)
    answer = simulation.clients[0].unmask(simulation.bitmap(without(*lost)))
    assert len(answer) == SHARE * (N - 1)
    for i, (neighbour, pair) in enumerate(held.items()):
        due, kept = (pair[SHARE:], pair[:SHARE]) if neighbour in lost else (pair[:SHARE], pair[SHARE:])
        assert answer[SHARE * i : SHARE * i + SHARE] == due
        assert kept not in answer


@pytest.mark.parametrize("bitmap", [b"", b"\xff" * 4, b"\xff" * 2], ids=["empty", "long", "short"])
def test_a_bitmap_of_another_size_is_refused(stage: Simulation, bitmap: bytes) -> None:
    masked(stage)
    with pytest.raises(BadMessage, match="bitmap"):
        stage.clients[0].unmask(bitmap)


# Rosters and members.


def test_a_roster_must_hold_its_own_keys_unchanged(stage: Simulation) -> None:
    """Rule 12: otherwise the aggregator would sit in the middle."""
    simulation = enrol(stage.cohort)
    simulation.send_keys(EVERYONE)
    for start in (0, 32):
        keys = bytearray(simulation.roster.keys)
        keys[start] ^= 1
        with pytest.raises(Refused, match="keys of slot 0"):
            simulation.clients[0].shares(Roster(simulation.cohort, simulation.roster.bitmap, bytes(keys)))
    absent = Roster(simulation.cohort, simulation.bitmap(without(0)), simulation.roster.keys[KEYS:])
    with pytest.raises(Refused, match="keys of slot 0"):
        simulation.clients[0].shares(absent)


def test_a_roster_below_the_minimum_is_refused(stage: Simulation) -> None:
    simulation = enrol(stage.cohort)
    simulation.send_keys(EVERYONE)
    small = Roster(simulation.cohort, simulation.bitmap(range(21)), simulation.roster.keys[: 21 * KEYS])
    with pytest.raises(Refused, match="21 members"):
        simulation.clients[0].shares(small)


def test_a_roster_of_another_cohort_is_refused(stage: Simulation) -> None:
    client = enrol(make_cohort(N, M, 1, name="d")).clients[0]
    client.keys()
    with pytest.raises(Refused, match="cohort c"):
        client.shares(stage.roster)


def test_a_weak_key_in_the_roster_is_refused(stage: Simulation) -> None:
    simulation = enrol(stage.cohort)
    simulation.send_keys(EVERYONE)
    keys = simulation.roster.keys[:KEYS] + bytes(KEYS) + simulation.roster.keys[2 * KEYS :]
    with pytest.raises(Refused, match="small order"):
        simulation.clients[0].shares(Roster(simulation.cohort, simulation.roster.bitmap, keys))


@pytest.mark.parametrize(
    "change", [{"neighbours": 22}, {"threshold": 1}, {"threshold": 11}], ids=["sparser", "t-is-one", "t-one-lower"]
)
def test_k_and_t_are_computed_again_and_not_believed(change: dict[str, int]) -> None:
    """Rule 12."""
    cohort = make_cohort(N, M, 1)
    assert isinstance(cohort.channel, Masking)
    told = cohort.model_copy(update={"channel": cohort.channel.model_copy(update=change)})
    with pytest.raises(Refused, match="the run's rates give 23, 12"):
        MaskingClient(told, 0, floor=1, dropout=0.1, corrupt=0.1)


def test_a_minimum_below_what_the_dropout_rate_leaves_is_refused() -> None:
    cohort = make_cohort(N, M, 1).model_copy(update={"minimum": 21})
    with pytest.raises(Refused, match="opens at 21"):
        MaskingClient(cohort, 0, floor=1, dropout=0.1, corrupt=0.1)


def test_members_must_be_of_the_roster_hold_itself_and_be_enough(stage: Simulation) -> None:
    small = enrol(stage.cohort)
    small.send_keys(without(23))
    small.send_shares(without(23))
    with pytest.raises(Refused, match="not there in the stage before"):
        masked(small, members=small.bitmap(EVERYONE))
    with pytest.raises(Refused, match="lack slot 0"):
        masked(stage, members=stage.bitmap(without(0)))
    with pytest.raises(Refused, match="insists on 22"):
        masked(stage, members=stage.bitmap(without(1, 2, 3)))


def test_a_changed_or_misrouted_box_is_refused_by_its_senders_name(stage: Simulation) -> None:
    """Rule 9."""
    inbox, near = stage.inboxes[0], stage.roster.neighbours(0)
    swapped = inbox[50:100] + inbox[:50] + inbox[100:]
    with pytest.raises(Refused, match=f"from slot {near[0]} to slot 0"):
        masked(stage, inbox=swapped)
    with pytest.raises(Refused, match=f"from slot {near[1]} to slot 0"):
        masked(stage, inbox=inbox[:60] + bytes([inbox[60] ^ 1]) + inbox[61:])
    with pytest.raises(BadMessage, match="inbox"):
        masked(stage, inbox=inbox[:-1])


@pytest.mark.parametrize(
    "vector",
    [np.array([M], dtype=np.uint64), np.array([1, 2], dtype=np.uint64), np.array([1], dtype=np.int64)],
    ids=["as-large-as-m", "too-long", "signed"],
)
def test_a_vector_outside_the_channel_is_refused(stage: Simulation, vector: Vector) -> None:
    with pytest.raises(BadParameter, match="vector"):
        stage.clients[0].masked(vector, stage.bitmap(EVERYONE), stage.inboxes[0])


def test_a_slot_outside_the_cohort_is_refused() -> None:
    with pytest.raises(BadParameter, match="slot"):
        MaskingClient(make_cohort(N, M, 1), N, floor=1, dropout=0.1, corrupt=0.1)


# Masks.
