"""Tests of a shuffler that lies alone: what its clients' receipts show, and that nothing is released then.

Every attack is played over the real services. The shuffler holds the tickets and report ids of all clients, knows the
server's public key and the cohort, and seals records of its own.
"""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from distrust.client.fleet.fleet import FleetOptions
from distrust.client.transport.http import HttpTransport
from distrust.common.dp.mechanisms.families.base import Mechanism
from distrust.common.errors import Refused
from distrust.common.protocol.channels.assigned import AssignedRecords, GroupedRecords
from distrust.common.protocol.channels.sealed import REPORT_ID, Sealed, checksum_of
from distrust.common.protocol.crypto.receipts import RECEIPT_SECRET, RECORD_HASH
from distrust.common.protocol.crypto.seal import seal
from distrust.common.protocol.intermediary import store
from distrust.common.protocol.intermediary.store import SELF, State
from distrust.common.protocol.messages.batch import Batch
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import RecordList
from distrust.common.protocol.messages.upload import Receipts, Upload
from distrust.common.protocol.run.config import RunConfig
from distrust.common.randomness import SystemStream
from distrust.server.learner.rounds import LostCohort, ReleasedCohort
from distrust.server.runs.receipts import ReceiptBook
from distrust.shuffler.service import REPORT, Shuffler
from tests.support.recording import Exchange, RecordedRun, record_run

CLIENTS = 64
VICTIM = 5
"""The slot whose record the shuffler passes on."""

Forge = Callable[[Cohort, list[bytes]], list[bytes]]
"""Returns what the shuffler hands over in place of the reports of slots 0, 1, …"""


def config(**changes: Any) -> RunConfig:
    """Return a run whose first round has two cohorts of `CLIENTS`, and no pulls for another attempt."""
    whole: dict[str, Any] = {
        "run": "crowd",
        "arms": 2,
        "horizon": 2 * CLIENTS,
        "mechanism": {"name": "shuffled-laplace", "epsilon": 1.0, "delta": 1e-3, "precision": 20},
        "policy": {"first_batch": 6},
        "intermediary": {"dropout": 0.1, "corrupt": 0.1},
    }
    return RunConfig.model_validate(whole | changes)


def own_report(cohort: Cohort, report_id: bytes) -> bytes:
    """Return a report of the shuffler's own, whose reward is a number that it knows: zero."""
    assert isinstance(cohort.channel, Sealed)
    return report_id + seal(cohort.channel.server_key, cohort, report_id, bytes(cohort.channel.size))


def all_but_the_victims(cohort: Cohort, reports: list[bytes], forged: Callable[[int], bytes]) -> list[bytes]:
    return [one if slot == VICTIM else own_report(cohort, forged(slot)) for slot, one in enumerate(reports)]


def fresh_ids(cohort: Cohort, reports: list[bytes]) -> list[bytes]:
    return all_but_the_victims(cohort, reports, lambda slot: slot.to_bytes(REPORT_ID, "big"))


def reused_ids(cohort: Cohort, reports: list[bytes]) -> list[bytes]:
    """Keep the report id of each client, which stands before its sealed record."""
    return all_but_the_victims(cohort, reports, lambda slot: reports[slot][:REPORT_ID])


def a_few_replaced(cohort: Cohort, reports: list[bytes], *, lost: int) -> list[bytes]:
    own = [own_report(cohort, slot.to_bytes(REPORT_ID, "big")) for slot in range(lost)]
    return [*own, *reports[lost:]]


def lie(tap: pytest.MonkeyPatch, forge: Forge) -> None:
    """Have the shuffler hand over forged reports. Everything else that it says fits them."""

    def forged(self: Shuffler, tx: Connection, state: State) -> Batch:
        bodies = [body for _, body in store.bodies(tx, state.number, REPORT, SELF, state.cohort.clients)]
        made = forge(state.cohort, bodies)
        survivors, content = state.cohort.channel.mix(enumerate(made), SystemStream(), None)
        return Batch(cohort=state.name, survivors=survivors, content=content)

    tap.setattr(Shuffler, "_small_batch", forged)


def receipts(run: RecordedRun) -> list[tuple[int, bool]]:
    return [(slot, bool(present)) for slot, present in run.rows("server", "SELECT slot, present FROM receipts")]


def named(lost: LostCohort) -> int:
    """Return how many clients have named the shuffler. No more are waited for once there are enough."""
    found = re.fullmatch(
        r"the shuffler did not deliver: (\d+) clients have not found .* nothing is released", lost.reason
    )
    assert found
    return int(found[1])


@pytest.mark.parametrize("forge", [fresh_ids, reused_ids])
def test_a_shuffler_that_seals_all_other_records_reads_no_reward(
    forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With report ids in place of records in the list, the second attack would not be seen."""
    lie(monkeypatch, forge)
    run = record_run(tmp_path, [config()], 0.0, monkeypatch)
    assert run.views["crowd"].state == "failed"
    lost = run.outcomes()
    assert len(lost) == 2
    for one in lost:
        assert isinstance(one, LostCohort)
        assert named(one) > 6
    assert {slot for slot, present in receipts(run) if present} <= {VICTIM}


def test_without_receipts_it_would_read_the_victims_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack of the test above is a real one: the public estimate is the victim's message."""
    monkeypatch.setattr(Mechanism, "receipted", property(lambda _self: False))
    lie(monkeypatch, fresh_ids)
    run = record_run(tmp_path, [config()], 0.0, monkeypatch)
    for one in run.outcomes():
        assert isinstance(one, ReleasedCohort)
        mechanism = run.truth.moduli[one.cohort]
        message = int(run.truth.rows[one.cohort][VICTIM][0])
        read = round(one.sum[0] * 20) % mechanism  # the shuffler's own messages are zero: their noise is in no record
        assert read == message


@pytest.mark.parametrize(("lost", "kind"), [(6, "released"), (12, "released"), (13, "aborted")])
def test_a_shuffler_may_replace_as_many_records_as_may_be_lost_and_no_more(
    lost: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise counts on the minimum, 52 of 64. Above ⌊cn⌋ = 6 the events name the shuffler, released or not."""
    lie(monkeypatch, partial(a_few_replaced, lost=lost))
    run = record_run(tmp_path, [config(intermediary={"dropout": 0.2, "corrupt": 0.1})], 0.0, monkeypatch)
    assert {outcome.kind for outcome in run.outcomes()} == {kind}
    events = [json.loads(text) for (text,) in run.rows("server", "SELECT body FROM events")]
    ends = [event.get("detail") or "" for event in events if event["kind"] in {"cohort-released", "cohort-aborted"}]
    assert [one.startswith("the shuffler did not deliver") for one in ends] == [lost > 6] * 2


def test_an_honest_shuffler_gets_a_receipt_of_every_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = record_run(tmp_path, [config()], 0.0, monkeypatch)
    assert [outcome.kind for outcome in run.outcomes()] == ["released", "released"]
    assert sorted(receipts(run)) == [(slot, True) for slot in range(CLIENTS) for _ in range(2)]


def test_clients_that_never_sent_a_record_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config_ = config(intermediary={"dropout": 0.4, "corrupt": 0.1})
    run = record_run(tmp_path, [config_], 0.2, monkeypatch)
    assert {outcome.kind for outcome in run.outcomes()} == {"released"}
    assert all(present for _, present in receipts(run))
    assert 0 < len(receipts(run)) < 2 * CLIENTS


def test_the_shuffler_cannot_answer_with_its_clients_tickets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds each ticket, and no secret of a receipt."""
    lie(monkeypatch, fresh_ids)
    exchanges: list[Exchange] = []
    answered, take = list[Any](), ReceiptBook.take

    def before_the_clients(self: ReceiptBook, active: Any, cohort: Cohort, theirs: Receipts) -> Any:
        """Play the shuffler's own receipts first: a first answer counts."""
        slots = list(range(CLIENTS))
        tickets = {
            item["slot"]: item["ticket"]
            for exchange in exchanges
            if exchange.url.path.endswith(f"{cohort.cohort}/reports")
            for item in json.loads(exchange.body)["items"]
        }
        secrets = b"".join(tickets[slot].encode()[:RECEIPT_SECRET] for slot in slots)
        forged = Receipts(cohort=cohort.cohort, slots=slots, secrets=secrets, answers=b"\x01" * CLIENTS)
        answered.append(take(self, active, cohort, forged))
        return take(self, active, cohort, theirs)

    monkeypatch.setattr(ReceiptBook, "take", before_the_clients)
    run = record_run(tmp_path, [config()], 0.0, monkeypatch, exchanges=exchanges)
    assert {outcome.kind for outcome in run.outcomes()} == {"aborted"}
    assert answered
    for answer in answered:
        assert answer.accepted == 0
        assert {one.type for one in answer.refused} == {"urn:distrust:problem:bad-ticket"}


def test_no_request_to_the_shuffler_has_a_secret_of_a_receipt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = record_run(tmp_path, [config()], 0.0, monkeypatch)
    given = [json.loads(one.body)["secrets"] for one in run.exchanges if one.url.path.endswith("/receipts")]
    assert given
    assert {exchange.callee for exchange in run.exchanges if exchange.url.path.endswith("/receipts")} == {"server"}
    sent = b"".join(one.body for one in run.exchanges if one.callee == "shuffler")
    assert not any(secret.encode() in sent for secret in given)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(lambda hashes: hashes[: len(hashes) - RECORD_HASH], "the server's list of records", id="shorter"),
        pytest.param(
            lambda hashes: hashes and bytes(RECORD_HASH) + hashes[RECORD_HASH:],
            "whose digest the shuffler states",
            id="other-records-in-length-and-order-of-the-list",
        ),
    ],
)
def test_a_server_that_changes_the_list_is_answered_by_nobody(
    change: Callable[[bytes], bytes], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clients' word "absent" would tell it whose records it left out: those whose reward is 0, say."""
    listed = ReceiptBook.listed

    def changed(self: ReceiptBook, cohort: Cohort, *, over: bool) -> RecordList:
        whole = listed(self, cohort, over=over)
        return whole.model_copy(update={"hashes": change(whole.hashes)})

    monkeypatch.setattr(ReceiptBook, "listed", changed)
    exchanges: list[Exchange] = []
    with pytest.raises(Refused, match=why):
        record_run(tmp_path, [config()], 0.0, monkeypatch, exchanges=exchanges)
    assert any(exchange.url.path.endswith("/records") for exchange in exchanges)
    assert not any(exchange.url.path.endswith("/receipts") for exchange in exchanges)


@pytest.mark.parametrize(
    "mechanism",
    [
        {"name": "local-laplace-discrete", "epsilon": 1.0, "via": "shuffler"},
        {"name": "central-laplace-discrete", "epsilon": 1.0, "via": "shuffler"},
        {"name": "shuffled-binomial", "epsilon": 1.0, "delta": 1e-3},
    ],
)
def test_clients_whose_promise_counts_on_no_other_record_make_no_call_more(
    mechanism: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = record_run(tmp_path, [config(mechanism=mechanism)], 0.0, monkeypatch)
    assert {outcome.kind for outcome in run.outcomes()} == {"released"}
    calls = {exchange.url.path.rpartition("/")[2] for exchange in run.exchanges if exchange.caller.startswith("fleet")}
    assert calls <= {"round", "config", "tickets", "terms", "reports"}
    assert receipts(run) == []


def assigning() -> RunConfig:
    """Return a run whose shuffler assigns one of two actions to each of 48 clients."""
    actions = {"kind": "given", "vectors": [[1.0, 0.0], [0.0, 1.0]]}
    policy = {"name": "almost-free", "model": "shuffled", "actions": actions}
    rates = {"dropout": 0.3, "minimum": 24, "corrupt": 0.1}
    return config(run="dealt", horizon=48, policy=policy, intermediary=rates)


def test_assigned_records_have_receipts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shuffler replaces the records of all clients but one, each at its own action."""
    mix = Shuffler._mix

    def forged(self: Shuffler, state: State) -> Batch:
        batch = mix(self, state)
        channel = state.cohort.channel
        assert isinstance(channel, AssignedRecords)
        assert isinstance(batch.content, GroupedRecords)
        size = len(batch.content.body) // batch.survivors
        bodies = list[bytes]()
        for place, count in enumerate(batch.content.counts):
            for number in range(count):
                report_id = bytes([place, number]) + bytes(REPORT_ID - 2)
                own = seal(channel.server_key, state.cohort, report_id, bytes(channel.size), place)
                bodies.append(own)
        assert {len(own) for own in bodies} == {size}
        content = batch.content.model_copy(update={"body": b"".join(bodies), "checksum": checksum_of(bodies)})
        return batch.model_copy(update={"content": content})

    monkeypatch.setattr(Shuffler, "_mix", forged)
    run = record_run(tmp_path, [assigning()], 0.0, monkeypatch)
    (lost,) = run.outcomes()
    assert isinstance(lost, LostCohort)
    assert named(lost) > 4


def test_a_client_whose_assigned_record_is_in_another_actions_group_says_that_it_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such record opens. If its client found it, the shuffler could fill its place with a record of its own."""
    mix = Shuffler._mix

    def turned(self: Shuffler, state: State) -> Batch:
        batch = mix(self, state)
        assert isinstance(batch.content, GroupedRecords)
        size = len(batch.content.body) // batch.survivors
        body = batch.content.body[5 * size :] + batch.content.body[: 5 * size]  # five of each group in the other one
        return batch.model_copy(update={"content": batch.content.model_copy(update={"body": body})})

    monkeypatch.setattr(Shuffler, "_mix", turned)
    run = record_run(tmp_path, [assigning()], 0.0, monkeypatch)
    (lost,) = run.outcomes()
    assert isinstance(lost, ReleasedCohort)
    assert sum(not present for _, present in receipts(run)) == 10
    assert lost.survivors == 38


@pytest.mark.parametrize("block", [1, 8])
def test_a_client_that_sends_one_record_twice_costs_itself_its_slots(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds two slots, and sends one sealed record under two report ids. All others are served."""
    upload, first = HttpTransport.upload, dict[str, bytes]()

    async def twice(self: HttpTransport, cohort: Cohort, body: Upload) -> Any:
        items = []
        for item in body.items:
            own = item.body
            if item.slot in {3, 4}:  # whichever comes first
                own = own[:REPORT_ID] + first.setdefault(cohort.cohort, own)[REPORT_ID:]
            items.append(item.model_copy(update={"body": own}))
        return await upload(self, cohort, body.model_copy(update={"items": items}))

    monkeypatch.setattr(HttpTransport, "upload", twice)
    run = record_run(tmp_path, [config()], 0.0, monkeypatch, options=FleetOptions(block=block))
    for outcome in run.outcomes():
        assert isinstance(outcome, ReleasedCohort)
        assert outcome.survivors == CLIENTS - 2
    assert run.rows("shuffler", "SELECT DISTINCT stage FROM cohorts") == [("done",)]
