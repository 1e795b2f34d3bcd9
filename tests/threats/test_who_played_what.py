"""Tests of assigned actions (FREE Algorithm 3), on all that real services sent and stored.

The server never learns which client played which action. The shuffler knows it, and never learns a reward.
"""

import json
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from distrust.common.modular import unpack
from distrust.common.protocol.channels.assigned import SECRET, AssignedRecords, GroupedRecords
from distrust.common.protocol.channels.sealed import REPORT_ID, sealed_size
from distrust.common.protocol.crypto.seal import open_record
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.upload import ActionAnswer, ActionRequest, Receipts, Upload
from distrust.common.protocol.run.config import RunConfig
from distrust.common.wire import decode_blob, encode_blob
from distrust.shuffler.assignment import pack_order
from tests.support.recording import PARTIES, RecordedRun, Recording, keys, record_run

EACH = 24
"""Plays of each of the two actions, all in one cohort."""
CLIENTS = 2 * EACH


def config() -> RunConfig:
    """Return a run of one round, whose clients leave before and after they get their plays."""
    actions = {"kind": "given", "vectors": [[1.0, 0.0], [0.0, 1.0]]}
    return RunConfig.model_validate(
        {
            "run": "dealt",
            "arms": 2,
            "horizon": CLIENTS,
            "policy": {"name": "almost-free", "model": "shuffled", "actions": actions},
            "mechanism": {"name": "shuffled-laplace", "epsilon": 1.0, "delta": 1e-3, "precision": 1000},
            "intermediary": {"dropout": 0.3, "corrupt": 0.1, "minimum": EACH},
        }
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedRun]:
    with pytest.MonkeyPatch.context() as tap:
        yield record_run(tmp_path_factory.mktemp("parties"), [config()], 0.2, tap)


@pytest.fixture(scope="module")
def recordings(recorded: RecordedRun) -> dict[str, Recording]:
    return {party: Recording.of(recorded, party) for party in PARTIES}


@pytest.fixture(scope="module")
def cohort(recorded: RecordedRun) -> Cohort:
    (cohort,) = recorded.cohorts("dealt")
    return cohort


@pytest.fixture(scope="module")
def released(recorded: RecordedRun) -> BatchAnswer:
    return recorded.batch("dealt.1.0.1")


def groups(cohort: Cohort, released: BatchAnswer) -> list[list[bytes]]:
    """Return the sealed records of each action, as the server got them."""
    assert released.batch is not None
    assert isinstance(released.batch.content, GroupedRecords)
    assert isinstance(cohort.channel, AssignedRecords)
    body, size, result = released.batch.content.body, sealed_size(cohort.channel.size), []
    for count in released.batch.content.counts:
        result.append([body[at : at + size] for at in range(0, count * size, size)])
        body = body[count * size :]
    return result


def reports(recorded: RecordedRun) -> dict[int, bytes]:
    """Return the reports that clients sent, by slot, in the order of arrival."""
    return recorded.bodies("shuffler", recorded.cohorts("dealt")[0], "report")


def order(recorded: RecordedRun) -> bytes:
    ((raw,),) = recorded.rows("shuffler", "SELECT body FROM messages WHERE stage = 'order'")
    assert isinstance(raw, bytes)
    return raw


def action_requests(recorded: RecordedRun) -> list[tuple[ActionRequest, ActionAnswer]]:
    """Return every request for plays, with the shuffler's answer."""
    sent = [one for one in recorded.between("fleet", "shuffler") if one.url.path.endswith("/actions")]
    return [(ActionRequest.model_validate_json(o.body), ActionAnswer.model_validate_json(o.answer)) for o in sent]


def test_the_run_was_real(
    recorded: RecordedRun, recordings: dict[str, Recording], cohort: Cohort, released: BatchAnswer
) -> None:
    """Clients were lost, some after they got their play, and the search finds values that are in the recordings."""
    assert (released.state, cohort.clients) == ("released", CLIENTS)
    assert 0 < released.lost < CLIENTS - cohort.minimum + 1
    assigned = {slot for _, answer in action_requests(recorded) for slot in answer.slots}
    assert set(reports(recorded)) < assigned
    assert min(map(len, groups(cohort, released))) > 8
    assert all(recordings["shuffler"].holds(body) for body in reports(recorded).values())
    assert recordings["server"].holds(groups(cohort, released)[0][0])
    promise = recorded.views["dealt"].snapshot.guarantee
    assert (promise.model, promise.claimed) == ("shuffle", 1.0)


# The clients.


def test_every_client_is_told_its_own_play_only(recorded: RecordedRun) -> None:
    plays: dict[int, int] = {}
    for request, answer in action_requests(recorded):
        assert answer.refused == []
        assert answer.slots == request.slots
        assert not plays.keys() & set(answer.slots)
        plays |= dict(zip(answer.slots, answer.plays, strict=True))
    assert len(set(plays.values())) == len(plays)
    truth = recorded.truth.plays["dealt.1.0.1"]
    assert all(plays[slot] == record_run for slot, record_run in truth.items())


# The shuffler.


def test_the_shuffler_knows_who_plays_what(recorded: RecordedRun) -> None:
    stored = np.frombuffer(order(recorded), dtype="<u4")
    assert sorted(stored.tolist()) == list(range(CLIENTS))
    assert all(stored[slot] == record_run for slot, record_run in recorded.truth.plays["dealt.1.0.1"].items())


@pytest.mark.parametrize("party", PARTIES)
def test_no_service_ever_holds_a_reward(recorded: RecordedRun, recordings: dict[str, Recording], party: str) -> None:
    rewards = {float(reward) for reward in recorded.truth.rewards["dealt.1.0.1"] if 0 < reward < 1}
    assert len(rewards) > EACH
    assert not [reward for reward in rewards if recordings[party].holds_number(reward)]


def test_the_shuffler_holds_no_plaintext_of_a_record_and_no_key_to_it(
    recorded: RecordedRun, recordings: dict[str, Recording]
) -> None:
    seals = [one.seal.private_bytes_raw() for one in recorded.keys.values()]
    assert seals
    assert not [key for key in seals if recordings["shuffler"].holds(key)]
    assert len(recorded.truth.payloads) > EACH
    assert not recordings["shuffler"].reads(
        [body[:REPORT_ID] for body in reports(recorded).values()], recorded.truth.payloads
    )


def test_all_records_have_one_size_whatever_was_played(recorded: RecordedRun) -> None:
    assert len({len(body) for body in reports(recorded).values()}) == 1


# The server.


def test_the_server_never_holds_the_order_or_a_play(recorded: RecordedRun, recordings: dict[str, Recording]) -> None:
    """Searched are the stored order, its parts, its inverse and the shuffler's answers. The shuffler has the order."""
    raw = order(recorded)
    needles = [raw, *(raw[at : at + 16] for at in range(0, len(raw), 16))]
    needles += [pack_order(np.argsort(np.frombuffer(raw, dtype="<u4")))]
    for _, answer in action_requests(recorded):
        assigned = json.dumps(answer.plays, separators=(",", ":"))
        needles += [assigned.encode()] if len(answer.plays) > 3 else []
        needles += [answer.model_dump_json().encode()]
    assert len(needles) > 12
    assert not [needle for needle in needles if recordings["server"].holds(needle)]
    assert all(recordings["shuffler"].holds(one) for one in (raw, raw[:16]))


def test_clients_tell_the_server_nothing_of_what_they_play(recorded: RecordedRun) -> None:
    sent = recorded.between("fleet", "server")
    assert {one.url.path.rpartition("/")[2] for one in sent} == {"config", "round", "tickets", "records", "receipts"}
    bodies = [json.loads(one.body) for one in sent if one.body]
    requests = [body for body in bodies if "slots" not in body]
    receipts = [Receipts.model_validate(body) for body in bodies if "slots" in body]
    assert all(set(request) == {"version", "request", "round", "want", "keys"} for request in requests)
    assert {len(decode_blob(request["keys"])) - 32 * request["want"] for request in requests} == {0}
    assert receipts
    assert all(one.answers == b"\x01" * len(one.slots) for one in receipts)  # the same word of all, whatever they play


def test_the_shuffler_tells_the_server_groups_and_counts_and_no_slot_ticket_or_sender(recorded: RecordedRun) -> None:
    sent = recorded.between("server", "shuffler")
    assert {one.url.path.rpartition("/")[2] for one in sent if one.method == "GET"} == {"batch"}
    names = set().union(*(keys(json.loads(one.answer)) for one in sent if one.method == "GET"))
    answer = {"version", "cohort", "state", "batch", "reason", "lost", "delivery"}
    assert names <= answer | {"survivors", "content", "kind", "body", "counts", "checksum", "liars", "disputes"}
    opened = [json.loads(one.body)["channel"] for one in sent if one.method == "PUT"]
    assert opened
    assert all(channel["noise_seed"] is None for channel in opened)


def test_records_reach_the_server_by_action_in_an_order_that_tells_nothing(
    recorded: RecordedRun, cohort: Cohort, released: BatchAnswer
) -> None:
    """A group's order is not that of slots, arrival or plays. By chance nine records or more have one of these orders
    with probability below 1e-5, and both groups below 1e-10.
    """
    assert isinstance(cohort.channel, AssignedRecords)
    places, arrived = cohort.channel.deal.places(), reports(recorded)
    plays = recorded.truth.plays["dealt.1.0.1"]
    agree = []
    for place, group in enumerate(groups(cohort, released)):
        sent = {slot: body[REPORT_ID:-SECRET] for slot, body in arrived.items() if places[plays[slot]] == place}
        assert sorted(group) == sorted(sent.values())
        by_play = [sent[slot] for slot in sorted(sent, key=plays.__getitem__)]
        agree.append(group in (list(sent.values()), [sent[slot] for slot in sorted(sent)], by_play))
    assert not all(agree)


def test_the_server_never_meets_a_report_id_outside_of_its_sealed_record(
    recorded: RecordedRun, recordings: dict[str, Recording]
) -> None:
    sent = [one for one in recorded.between("fleet", "shuffler") if one.url.path.endswith("/reports")]
    items = [item.body for one in sent for item in Upload.model_validate_json(one.body).items]
    assert len(items) > EACH
    assert not [body for body in items if recordings["server"].holds(body[:REPORT_ID])]


def test_what_the_server_opens_is_noised_and_opens_under_its_action_only(
    recorded: RecordedRun, cohort: Cohort, released: BatchAnswer
) -> None:
    """The server opens the randomized messages, each under its action. Few of them are the rewards.

    Noise of scale 400 or more on a grid of 1000: ten of 48 within one step of the truth happen with 1e-12 at most.
    """
    key = recorded.keys[cohort.run_digest].seal
    opener = partial(open_record, key, cohort)
    modulus = recorded.truth.moduli[cohort.cohort]
    rows = sorted(int(row[0]) for row in recorded.truth.rows["dealt.1.0.1"].values())
    result = [
        int(unpack(opener(record, place)[1], modulus, 1)[0])
        for place, group in enumerate(groups(cohort, released))
        for record in group
    ]
    assert sorted(result) == rows
    grid = np.rint(1000 * (recorded.truth.rewards[cohort.cohort] + 1) / 2)
    plays = recorded.truth.plays[cohort.cohort]
    bare = [s for s, row in recorded.truth.rows[cohort.cohort].items() if abs(int(row[0]) - grid[plays[s]]) <= 1]
    assert len(bare) < 10 < len(rows)


@pytest.mark.parametrize("party", PARTIES)
def test_no_transcript_shows_a_ticket(recorded: RecordedRun, party: str) -> None:
    tickets = [
        request.tickets[at : at + 64]
        for request, _ in action_requests(recorded)
        for at in range(0, len(request.tickets), 64)
    ]
    shown = recorded.transcripts[party]
    assert len(tickets) > EACH
    assert not [one for one in tickets if one[:8].hex().encode() in shown or encode_blob(one[:9]).encode() in shown]


def test_the_servers_transcript_names_no_client_and_the_shufflers_names_each_with_its_action(
    recorded: RecordedRun,
) -> None:
    assert b"client " not in recorded.transcripts["server"]
    assert recorded.transcripts["shuffler"].count(b'"action":') >= len(reports(recorded))
