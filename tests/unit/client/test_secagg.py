"""What a client insists on before it answers: one test for each promise."""

import gc
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.secagg import MaskingClient
from common.crypto.graph import Roster
from common.crypto.share import SHARE
from common.errors import BadMessage, Refused, WrongStage
from lab.secagg_simulation import Simulation, enrol, make_cohort
from tests.unit.client.sharers import EVERYONE, ONE, M, N, masked, without


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
