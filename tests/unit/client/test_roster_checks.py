"""Tests of the checks that a client makes of rosters, members and inboxes: one test for each promise."""

import numpy as np
import pytest

from distrust.client.cohort.secagg import MaskingClient, Secrets
from distrust.common.errors import BadMessage, BadParameter, Refused
from distrust.common.modular import Vector
from distrust.common.protocol.channels.masked import Masking
from distrust.common.protocol.crypto.graph import KEYS_SIZE, Roster
from distrust.common.protocol.crypto.keys import key_hash
from distrust.lab.secagg_simulation import Simulation, enrol, make_cohort
from tests.support.masking_clients import EVERYONE, M, N, Story, without


def test_a_roster_must_hold_its_own_keys_unchanged(stage: Simulation) -> None:
    """With other keys for the client the aggregator could stand between it and its neighbours."""
    simulation = enrol(stage.cohort)
    simulation.send_keys(EVERYONE)
    for start in (0, 32):
        keys = bytearray(simulation.roster.keys)
        keys[start] ^= 1
        changed = Roster(simulation.cohort, simulation.roster.bitmap, bytes(keys))
        with pytest.raises(Refused, match="keys of slot 0"):
            simulation.clients[0].shares(changed, simulation.published)
    absent = Roster(simulation.cohort, simulation.bitmap(without(0)), simulation.roster.keys[KEYS_SIZE:])
    with pytest.raises(Refused, match="keys of slot 0"):
        simulation.clients[0].shares(absent, simulation.published)


def test_a_roster_below_the_minimum_is_refused(stage: Simulation) -> None:
    simulation = enrol(stage.cohort)
    simulation.send_keys(EVERYONE)
    small = Roster(simulation.cohort, simulation.bitmap(range(21)), simulation.roster.keys[: 21 * KEYS_SIZE])
    with pytest.raises(Refused, match="21 members"):
        simulation.clients[0].shares(small, simulation.published)


def test_a_roster_of_another_cohort_is_refused(stage: Simulation) -> None:
    client = enrol(make_cohort(N, M, 1, name="d")).clients[0]
    client.keys()
    with pytest.raises(Refused, match="cohort c"):
        client.shares(stage.roster, stage.published)


def test_a_weak_key_in_the_roster_is_refused(stage: Simulation) -> None:
    simulation = enrol(stage.cohort)
    simulation.send_keys(EVERYONE)
    keys = simulation.roster.keys[:KEYS_SIZE] + bytes(KEYS_SIZE) + simulation.roster.keys[2 * KEYS_SIZE :]
    weak = Roster(simulation.cohort, simulation.roster.bitmap, keys)
    with pytest.raises(Refused, match="small order"):
        simulation.clients[0].shares(weak, {**simulation.published, 1: key_hash(bytes(KEYS_SIZE))})


@pytest.mark.parametrize("start", [64, 96], ids=["mask-key", "channel-key"])
def test_a_roster_with_a_key_whose_hash_the_server_did_not_publish_is_refused_by_slot(start: int) -> None:
    """An aggregator that puts its own keys in the place of one neighbour's."""
    simulation = enrol(make_cohort(N, M, 1))
    simulation.send_keys(EVERYONE)
    keys = bytearray(simulation.roster.keys)
    keys[start : start + 32] = enrol(simulation.cohort).clients[1].keys()[start - 64 : start - 32]
    foreign = Roster(simulation.cohort, simulation.roster.bitmap, bytes(keys))
    with pytest.raises(Refused, match="keys of slot 1 are not those whose hash the server published"):
        simulation.clients[0].shares(foreign, simulation.published)
    with pytest.raises(Refused, match="no key hash of slot 3"):
        simulation.clients[0].shares(simulation.roster, {s: h for s, h in simulation.published.items() if s != 3})
    assert simulation.clients[0].shares(simulation.roster, simulation.published)


@pytest.mark.parametrize(
    "change", [{"neighbours": 22}, {"threshold": 1}, {"threshold": 11}], ids=["sparser", "t-is-one", "t-one-lower"]
)
def test_k_and_t_are_computed_again_and_not_believed(change: dict[str, int]) -> None:
    cohort = make_cohort(N, M, 1)
    assert isinstance(cohort.channel, Masking)
    shown = cohort.model_copy(update={"channel": cohort.channel.model_copy(update=change)})
    with pytest.raises(Refused, match="the run's rates give 23, 12"):
        MaskingClient(shown, 0, Secrets(), min_survivors=1, dropout=0.1, corrupt=0.1)


def test_a_minimum_below_what_the_dropout_rate_leaves_is_refused() -> None:
    cohort = make_cohort(N, M, 1).model_copy(update={"minimum": 21})
    with pytest.raises(Refused, match="opens at 21"):
        MaskingClient(cohort, 0, Secrets(), min_survivors=1, dropout=0.1, corrupt=0.1)


def test_members_must_be_of_the_stage_before_hold_itself_and_be_enough(stage: Simulation) -> None:
    """In stage `confirm` as in stage `masked`."""
    small = enrol(stage.cohort)
    small.send_keys(without(23))
    small.send_shares(without(23))
    late = Story(small)
    with pytest.raises(Refused, match="not there in the stage before"):
        late.confirm(small.bitmap(EVERYONE))
    story = Story(stage)
    for answer in (story.confirm, story.masked):
        with pytest.raises(Refused, match="lack slot 0"):
            answer(stage.bitmap(without(0)))
        with pytest.raises(Refused, match="insists on 22"):
            answer(stage.bitmap(without(1, 2, 3)))
        answer()
    late.confirm()
    with pytest.raises(Refused, match="not there in the stage before"):
        late.masked(small.bitmap(EVERYONE))


def test_an_inbox_or_a_challenge_of_another_size_is_refused(stage: Simulation) -> None:
    story = Story(stage)
    with pytest.raises(BadMessage, match="inbox"):
        story.confirm(inbox=stage.inboxes[0][:-1])
    with pytest.raises(BadMessage, match="challenge"):
        story.confirm(challenge=bytes(31))


@pytest.mark.parametrize(
    "vector",
    [np.array([M], dtype=np.uint64), np.array([1, 2], dtype=np.uint64), np.array([1], dtype=np.int64)],
    ids=["as-large-as-m", "too-long", "signed"],
)
def test_a_vector_outside_the_channel_is_refused(stage: Simulation, vector: Vector) -> None:
    story = Story(stage)
    story.confirm()
    with pytest.raises(BadParameter, match="vector"):
        story.masked(vector=vector)


def test_a_slot_outside_the_cohort_is_refused() -> None:
    with pytest.raises(BadParameter, match="slot"):
        MaskingClient(make_cohort(N, M, 1), N, Secrets(), min_survivors=1, dropout=0.1, corrupt=0.1)
