"""Tests of a server that signs its clients' tickets once more and uses them itself, over real services.

It learns the play of no client that plays. It cannot report for a client. A client learns that its slot was used.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from distrust.client.cohort.uploader import Limits
from distrust.client.fleet.fleet import FleetOptions
from distrust.client.transport.http import HttpTransport
from distrust.common.errors import BadTicket, Conflict
from distrust.common.protocol.channels.assigned import SECRET
from distrust.common.protocol.channels.sealed import SealedRecords
from distrust.common.protocol.crypto.context import claim
from distrust.common.protocol.crypto.seal import seal
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.upload import (
    ActionAnswer,
    ActionRequest,
    Item,
    RefusedItem,
    Upload,
    UploadAnswer,
)
from distrust.common.protocol.run.config import RunConfig
from distrust.server.intermediary import HttpIntermediaries
from distrust.server.runs.active_run import ActiveRun
from distrust.server.runs.receipts import ReceiptBook
from distrust.server.runs.ticket_issuer import sign
from distrust.server.storage.keys import KeyFolder, read_keys
from tests.support.recording import Exchange, RecordedRun, record_run

CLIENTS = 48
ASSIGNED = {
    "policy": {
        "name": "almost-free",
        "model": "shuffled",
        "actions": {"kind": "given", "vectors": [[1.0, 0.0], [0.0, 1.0]]},
    },
    "mechanism": {"name": "shuffled-laplace", "epsilon": 1.0, "delta": 1e-3, "precision": 1000},
    "horizon": CLIENTS,
}
SEALED = {
    "policy": {"name": "successive-elimination", "first_batch": 5},
    "mechanism": {"name": "shuffled-laplace", "epsilon": 1.0, "delta": 1e-3},
    "horizon": 64,
}
STOLEN = range(3, 7)
"""⌊0.1 · 48⌋ slots, as many as may collude. They are in the first part of an upload of `IN_PARTS`."""
ONE_MORE = range(3, 8)
IN_PARTS = FleetOptions(block=64, limits=Limits(items=8))


def config(kind: dict[str, object]) -> RunConfig:
    return RunConfig.model_validate(
        {"run": "run", "arms": 2, "intermediary": {"dropout": 0.3, "corrupt": 0.1, "minimum": 24}, **kind}
    )


class Thief:
    """The server's own keys and its connection to the shuffler. `learned`: plays that it got, by slot."""

    def __init__(self, folder: Path) -> None:
        self._keys, self.secret = KeyFolder(folder / "server.sqlite3.keys"), bytes(range(SECRET))
        self.learned: dict[int, int] = {}
        self.refused: list[RefusedItem] = []
        self.reported: Counter[str] = Counter()  # records of its own, by cohort
        self.way: HttpIntermediaries

    def tickets(self, cohort: Cohort, slots: Iterable[int]) -> list[bytes]:
        keys = read_keys(self._keys.file(cohort.run_digest))
        assert keys is not None
        return [sign(keys.ticket, cohort, slot, 1).signatures for slot in slots]

    async def ask(self, cohort: Cohort, slots: Sequence[int]) -> None:
        tickets = b"".join(self.tickets(cohort, slots))
        claims = b"".join(claim(cohort, slot, self.secret) for slot in slots)
        request = ActionRequest(cohort=cohort.cohort, slots=list(slots), tickets=tickets, claims=claims)
        peer = self.way._peer("shuffler")
        answer = await peer.post(f"/v1/cohorts/{cohort.address}/actions", request, ActionAnswer)
        self.learned |= dict(zip(answer.slots, answer.plays, strict=True))
        self.refused += answer.refused

    async def report(self, cohort: Cohort, slots: Sequence[int]) -> UploadAnswer:
        """Report records that would open. With assigned actions, seal them under the first action."""
        assert isinstance(cohort.channel, SealedRecords)
        sealer = partial(seal, cohort.channel.server_key, cohort, place=0 if cohort.channel.assigns else None)
        row, modulus = np.zeros(cohort.channel.size, dtype=np.uint64), 2**8
        bodies = [cohort.channel.report(row, modulus, sealer, self.secret) for _ in slots]
        cut = zip(slots, self.tickets(cohort, slots), bodies, strict=True)
        items = [Item(slot=slot, ticket=ticket, body=body) for slot, ticket, body in cut]
        upload = Upload(cohort=cohort.cohort, digest=cohort.digest(), stage="report", items=items)
        self.reported[cohort.cohort] += len(slots)
        return await self.way._peer("shuffler").post(f"/v1/cohorts/{cohort.address}/reports", upload, UploadAnswer)


Deed = Callable[[Thief, Cohort], Awaitable[object]]


def first_of_all(thief: Thief, tap: pytest.MonkeyPatch, deed: Deed) -> None:
    """Make the thief act before any client has a ticket, on the first cohort only, so that the run ends.

    The thief is the server. It does not wait for the receipts of slots in which it has reported itself.
    """
    honest, done, complete = HttpIntermediaries.open, list[Cohort](), ReceiptBook.complete

    def without_its_own(self: ReceiptBook, active: ActiveRun, cohort: Cohort, survivors: int) -> bool:
        return complete(self, active, cohort, survivors - thief.reported[cohort.cohort])

    tap.setattr(ReceiptBook, "complete", without_its_own)

    async def open_and_act(self: HttpIntermediaries, cohort: Cohort) -> None:
        await honest(self, cohort)
        thief.way = self
        if not done:
            done.append(cohort)
            await deed(thief, cohort)

    tap.setattr(HttpIntermediaries, "open", open_and_act)


async def nothing(_thief: Thief, _cohort: Cohort) -> None:
    """Do nothing. The thief has its connection to the shuffler then."""


def reporters(exchanges: list[Exchange], cohort: str = "") -> set[int]:
    """Return the slots in which fleets tried to report."""
    path = f"{cohort}/reports"
    sent = [one for one in exchanges if one.caller.startswith("fleet") and one.url.path.endswith(path)]
    return {item.slot for one in sent for item in Upload.model_validate_json(one.body).items}


def released(recorded: RecordedRun) -> tuple[str, int]:
    """Return the state of the first cohort's batch and how many were lost."""
    batch = recorded.batch("run.1.0.1")
    return batch.state, batch.lost


def test_a_server_that_asks_after_the_clients_is_told_nothing_and_reports_for_no_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between a client's question and its report the server asks and reports, with an equally valid ticket."""
    thief, honest, answers = Thief(tmp_path), HttpTransport.upload, list[UploadAnswer]()
    first_of_all(thief, monkeypatch, nothing)

    async def act_and_upload(self: HttpTransport, cohort: Cohort, upload: Upload) -> UploadAnswer:
        slots = [item.slot for item in upload.items]
        await thief.ask(cohort, slots)
        answers.append(await thief.report(cohort, slots))
        return await honest(self, cohort, upload)

    monkeypatch.setattr(HttpTransport, "upload", act_and_upload)
    recorded = record_run(tmp_path, [config(ASSIGNED)], 0.0, monkeypatch)
    assert (thief.learned, len(thief.refused)) == ({}, CLIENTS)
    assert {(one.type, one.status) for one in thief.refused} == {(Conflict("").urn, 409)}
    assert {one.type for answer in answers for one in answer.refused} == {BadTicket("").urn}
    assert sum(answer.accepted for answer in answers) == 0
    assert released(recorded) == ("released", 0)
    assert "ticket_conflict" not in capsys.readouterr().out


def test_a_server_that_asks_before_the_clients_learns_what_no_client_plays_and_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    thief, exchanges = Thief(tmp_path), list[Exchange]()
    first_of_all(thief, monkeypatch, lambda thief, cohort: thief.ask(cohort, STOLEN))
    recorded = record_run(tmp_path, [config(ASSIGNED)], 0.0, monkeypatch, exchanges=exchanges)
    assert (set(thief.learned), thief.refused) == (set(STOLEN), [])
    assert reporters(exchanges) == set(range(CLIENTS)) - set(STOLEN)
    assert set(recorded.truth.plays["run.1.0.1"]) == set(range(CLIENTS)) - set(STOLEN)
    assert not set(recorded.truth.plays["run.1.0.1"].values()) & set(thief.learned.values())
    assert released(recorded) == ("released", len(STOLEN))
    assert capsys.readouterr().out.count("another client has asked what it plays") == len(STOLEN)


def test_a_server_that_asks_for_all_clients_gets_no_report_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thief, exchanges = Thief(tmp_path), list[Exchange]()
    first_of_all(thief, monkeypatch, lambda thief, cohort: thief.ask(cohort, range(CLIENTS)))
    recorded = record_run(tmp_path, [config(ASSIGNED)], 0.0, monkeypatch, exchanges=exchanges)
    assert len(thief.learned) == CLIENTS
    assert (reporters(exchanges), recorded.truth.plays["run.1.0.1"]) == (set(), {})
    assert recorded.rows("shuffler", "SELECT stage FROM cohorts") == [("aborted",)]
    assert recorded.rows("server", "SELECT body FROM batches") == []


def test_without_assigned_actions_a_client_whose_slot_was_used_is_not_served_and_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The client loses its turn, and the server learns nothing: the shuffler has not kept the client's message."""
    thief = Thief(tmp_path)
    first_of_all(thief, monkeypatch, lambda thief, cohort: thief.report(cohort, [3, 4]))
    recorded = record_run(tmp_path, [config(SEALED)], 0.0, monkeypatch)
    out = capsys.readouterr().out
    assert out.count("ticket_conflict") == out.count("its message is here already, and differs") == 2
    kept = recorded.rows("shuffler", "SELECT COUNT(*) FROM messages WHERE stage = 'report' AND slot IN (3, 4)")
    assert kept == [(2 * len(recorded.rows("shuffler", "SELECT 1 FROM cohorts")),)]


async def steal(thief: Thief, cohort: Cohort, slots: Sequence[int]) -> None:
    """Play these clients to the end, so that the intermediary counts them as survivors."""
    if cohort.channel.kind == "dealt":
        await thief.ask(cohort, slots)
    await thief.report(cohort, slots)


@pytest.mark.parametrize(("kind", "accepted"), [(SEALED, 3), (ASSIGNED, 0)], ids=["sealed", "dealt"])
def test_a_fleet_that_sees_more_stolen_slots_than_may_collude_sends_nothing_more(
    kind: dict[str, object],
    accepted: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its clients would hide among fewer than the noise assumes. Three sealed records were sent before."""
    thief, exchanges = Thief(tmp_path), list[Exchange]()
    first_of_all(thief, monkeypatch, lambda thief, cohort: steal(thief, cohort, ONE_MORE))
    recorded = record_run(tmp_path, [config(kind)], 0.0, monkeypatch, exchanges=exchanges, options=IN_PARTS)
    assert reporters(exchanges, "run.1.0.1") - set(ONE_MORE) == set(range(accepted))
    kept = "SELECT COUNT(*) FROM messages WHERE stage = 'report' AND "
    kept += "cohort = (SELECT number FROM cohorts WHERE cohort = 'run.1.0.1')"
    assert recorded.rows("shuffler", kept) == [(accepted + len(ONE_MORE),)]
    assert recorded.rows("shuffler", "SELECT stage FROM cohorts WHERE cohort = 'run.1.0.1'") == [("aborted",)]
    out = capsys.readouterr().out
    assert out.count("conflicts_exceeded") == 1
    assert "another party plays more than" in out


@pytest.mark.parametrize("kind", [SEALED, ASSIGNED], ids=["sealed", "dealt"])
def test_as_many_as_may_collude_are_what_the_noise_can_do_without(
    kind: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    thief = Thief(tmp_path)
    slots = range(3, 3 + (4 if kind is ASSIGNED else 3))
    first_of_all(thief, monkeypatch, lambda thief, cohort: steal(thief, cohort, slots))
    recorded = record_run(tmp_path, [config(kind)], 0.0, monkeypatch, options=IN_PARTS)
    assert recorded.rows("shuffler", "SELECT stage FROM cohorts WHERE cohort = 'run.1.0.1'") == [("done",)]
    out = capsys.readouterr().out
    assert (out.count("ticket_conflict"), out.count("conflicts_exceeded")) == (len(slots), 0)
