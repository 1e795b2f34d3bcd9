"""What a client insists on of rosters, members and inboxes: one test for each promise."""

import numpy as np
import pytest

from client.secagg import MaskingClient
from common.crypto.graph import KEYS, Roster
from common.errors import BadMessage, BadParameter, Refused
from common.messages.cohort import Masking
from common.modular import Vector
from lab.secagg_simulation import Simulation, enrol, make_cohort
from tests.unit.client.sharers import EVERYONE, M, N, masked, without


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
