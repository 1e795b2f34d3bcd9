"""A server, a shuffler and fleets in one event loop, each over a file: they crash, are restored from copies, and lie.

The server's service and coordinator, the shuffler and the fleets are the deployed ones. Only HTTP is left out, and an
intermediary's long poll is answered at once. `Evidence` notes what clients have sent, and which party has done wrong.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from distrust.client.cohort.randomizer import World
from distrust.client.environments import build_environment, read_spec
from distrust.client.fleet.fleet import Fleet, FleetOptions
from distrust.client.fleet.memory import Memory
from distrust.common.errors import Aborted
from distrust.common.protocol.crypto.context import cohort_digest
from distrust.common.protocol.intermediary import tables
from distrust.common.protocol.messages.admission import Participant, ParticipantList, request_text, token_id
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort, KeyHashes, TicketRequest
from distrust.common.protocol.messages.status import DeliveryList, RecordList, Settled, StageView, StatementList
from distrust.common.protocol.messages.upload import (
    ActionAnswer,
    ActionRequest,
    InboxRequest,
    Leaving,
    Receipts,
    Upload,
    UploadAnswer,
)
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.round import RoundView, TicketAnswer
from distrust.common.protocol.storage.database import Database
from distrust.server.reading.reader import Reader
from distrust.server.runs.admission import Admission
from distrust.server.runs.coordinator import RunCoordinator
from distrust.server.runs.service import Service
from distrust.server.storage.store import open_database
from distrust.shuffler.service import REPORT
from tests.support.limits import lenient
from tests.support.manual_clock import ManualClock
from tests.support.one_loop import InTurn, OneLoop
from tests.support.server_harness import key_folder
from tests.support.shuffler_lies import Evidence, Lie, LyingShuffler

T = TypeVar("T")
TokenState = Literal["open", "revoked", "expired", "exhausted"]
RUN = "run"
LOOK = 1.0  # seconds between two looks of a fleet at a stage or a list
WORLD = World(build_environment(read_spec({"name": "gaussian-easy", "arms": 2, "seed": 5})), 5)
BLOCKS = (3, 2)  # clients for which each fleet asks at a time
PLENTY = 10**6  # slots that an open token gets
LIAR = 2  # the slot of the client that lies in its receipt, where one does


def token(number: int) -> str:
    """Return the participation token of a fleet."""
    return f"token of fleet {number}"


def _participant(number: int) -> Participant:
    name = f"fleet-{number}"
    return Participant(name=name, kind="token", id=token_id(token(number)), quota=PLENTY, own=True)


class Parties:
    """All parties of one run.

    lies     of the shuffler; it takes the last of them.
    numbers  what the shuffler adds to the number of its next delivery; it takes the last of them.
    """

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self.folder, self.config = folder, config
        self.clock = ManualClock()
        self.turns = OneLoop(self.clock)
        self.evidence = Evidence()
        self.lies: list[Lie] = []
        self.numbers: list[int] = []
        self.copies: list[dict[str, Path]] = []
        self._serves = asyncio.Event()
        self._participants = [_participant(number) for number in range(len(BLOCKS))]
        self._write_participants()
        self.admission = Admission(lambda: "operator", self._list, lambda: self.now)
        self.start_shuffler()
        self.start_server()
        self.server.create(config)
        self.fleets = [FleetInTurn(self, number) for number in range(len(BLOCKS))]

    def start_server(self) -> None:
        self._server_database = open_database(f"sqlite:///{self.folder}/server.sqlite3")
        self.server = Service(self._server_database, key_folder(self.folder), admission=self.admission)
        self.reader = Reader(self.server)
        self.coordinator = RunCoordinator(self.server, ShufflerInTurn(self))
        self._calls: set[asyncio.Task[Any]] = set()
        self.turns.loop.run_until_complete(self.coordinator.start())
        self._serves.set()

    def stop_server(self) -> None:
        """Have the server crash: its tasks end where they are, and its file stays."""
        self._serves.clear()
        while tasks := [*self.coordinator._collectors.values(), *self._calls]:  # a call may have just begun a collector
            for task in tasks:
                task.cancel()
            self.turns.turn()
        self._server_database.close()

    def start_shuffler(self) -> None:
        url = f"sqlite:///{self.folder}/shuffler.sqlite3"
        self._shuffler_database = Database(url, tables.METADATA, tables.VERSION)
        self.shuffler = LyingShuffler(self._shuffler_database, self.clock, self.lies, self.evidence)

    def stop_shuffler(self) -> None:
        self.shuffler.close()
        self._shuffler_database.close()

    def restart(self, party: str) -> None:
        getattr(self, f"stop_{party}")()
        getattr(self, f"start_{party}")()

    def copy(self) -> None:
        """Copy both services' files, as a backup of one moment does."""
        made = {party: self.folder / f"{party}.{len(self.copies)}.copy" for party in ("server", "shuffler")}
        for party, path in made.items():
            with closing(sqlite3.connect(self.file(party))) as live, closing(sqlite3.connect(path)) as backup:
                live.backup(backup)
        self.copies.append(made)

    def restore(self, party: str, number: int) -> None:
        getattr(self, f"stop_{party}")()
        file = self.file(party)
        for path in self.folder.glob(f"{file.name}*"):
            path.unlink()
        file.write_bytes(self.copies[number][party].read_bytes())
        self.evidence.wronged.add(f"{party}-restored")
        getattr(self, f"start_{party}")()

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.now(), UTC)

    @property
    def _list(self) -> Path:
        return self.folder / "participants.json"

    def set_token(self, number: int, state: TokenState) -> None:
        """Have the operator change the participation token of a fleet in the list, as its commands do."""
        changes: dict[TokenState, dict[str, Any]] = {
            "open": {},
            "revoked": {"revoked": True},
            "expired": {"expires": self.now},
            "exhausted": {"quota": max(1, self.server.store.spent(token_id(token(number))))},
        }
        self._participants[number] = _participant(number).model_copy(update=changes[state])
        self._write_participants()
        if state != "open":
            self.evidence.wronged.add("barred")

    def _write_participants(self) -> None:
        part = self._list.with_suffix(".part")
        part.write_text(ParticipantList(participants=tuple(self._participants)).model_dump_json())
        part.replace(self._list)

    def slots_left(self, number: int) -> int:
        """Return how many slots the token of a fleet gets from now on."""
        one = self._participants[number]
        if one.state(self.now) != "open":
            return 0
        return max(0, (one.quota or PLENTY) - self.server.store.spent(one.id))

    def file(self, party: str) -> Path:
        return self.folder / f"{party}.sqlite3"

    async def ask_server(self, question: Callable[[RunCoordinator], Awaitable[T]]) -> T:
        """Return the server's answer. A request that a crash interrupts is sent again, as a transport does."""
        while True:
            await self._serves.wait()
            task = asyncio.ensure_future(question(self.coordinator))
            self._calls.add(task)
            task.add_done_callback(self._answered)
            await asyncio.wait({task})  # a fleet that crashes now does not stop the server's work
            if not task.cancelled():
                return task.result()

    def _answered(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked may be gone: asyncio need not report it

    def close(self) -> None:
        for fleet in self.fleets:
            fleet.stop()
        self.stop_server()
        self.stop_shuffler()
        self.turns.close()


class ShufflerInTurn:
    """The shuffler as the server calls it, without HTTP. It may number a delivery wrongly.

    All cohorts of the machine are the shuffler's, so that a call which only the aggregator answers is a fault.
    """

    def __init__(self, parties: Parties) -> None:
        self._parties = parties

    async def open(self, cohort: Cohort) -> None:
        self._parties.shuffler.open(cohort)

    async def statements(self, cohort: Cohort, after: int) -> StatementList:
        raise AssertionError("asked of a masked cohort, and the machine has none")

    async def delivered(self, run_digest: bytes, via: str, after: int) -> DeliveryList:
        del via
        return self._parties.shuffler.delivered(run_digest, after, 100)

    async def settle(self, run_digest: bytes, via: str, cohorts: Sequence[str]) -> None:
        del via
        self._parties.shuffler.settle(run_digest, Settled(cohorts=list(cohorts)))

    async def prune(self, run_digest: bytes, via: str) -> None:
        del via
        self._parties.shuffler.prune(run_digest)

    async def collect(self, cohort: Cohort, *, opening: bool) -> BatchAnswer:
        if opening:
            with suppress(Aborted):  # the answer says so, too
                self._parties.shuffler.open(cohort)
        result = self._parties.shuffler.batch(cohort.address)
        await asyncio.sleep(0)  # on the way: the server may crash now
        answer = result if isinstance(result, BatchAnswer) else BatchAnswer.model_validate_json(result)
        if answer.delivery is not None and self._parties.numbers:
            self._parties.evidence.wronged.add("wrong-number")
            wrong = answer.delivery + self._parties.numbers.pop()
            return answer.model_copy(update={"delivery": wrong if wrong > 0 else None})
        return answer


class FleetInTurn:
    """A fleet over its file of memory, and its transport to both services.

    permits  requests for tickets that it may make. Without one it waits.
    stale    an older answer to such a request, which the server shows it next.
    delay    seconds until its reports reach the shuffler.
    twice    whether answers to its messages are lost once, so that it sends each again.
    lying    whether its client in slot `LIAR` says the contrary of what it found.
    """

    def __init__(self, parties: Parties, number: int) -> None:
        self._parties, self._number = parties, number
        self.answers: list[TicketAnswer] = []
        self.errors: list[BaseException] = []
        self.twice, self.lying, self.delay = False, False, 0.0
        self.start()

    def start(self) -> None:
        self.permits, self.stale = asyncio.Semaphore(0), list[TicketAnswer]()
        self.memory = Memory(self._parties.folder / f"clients-{self._number}.sqlite3")
        options = FleetOptions(block=BLOCKS[self._number])
        self.fleet = Fleet(self, WORLD, lenient(), options, self.memory)
        self.fleet._worker = self.fleet._notes = InTurn()
        self.task = self._parties.turns.loop.create_task(self.fleet.serve())

    def stop(self) -> None:
        """Have the fleet crash: what it held in memory is lost, and its file stays."""
        self.task.cancel()
        self._parties.turns.turn()
        if self.task.done() and not self.task.cancelled() and self.task.exception() is not None:
            self.errors.append(self.task.exception() or AssertionError)
        self.memory.close()

    async def round(self, after: int, wait: float) -> RoundView:
        del after, wait
        return self._parties.reader.round_view(RUN)

    async def config(self) -> RunConfig:
        return self._parties.config

    async def tickets(self, request: TicketRequest, wait: float) -> TicketAnswer:
        """Request tickets with this fleet's participation token, as the server's route does."""
        del wait
        await self.permits.acquire()
        if self.stale:
            return self.stale.pop()
        left, digest = self._parties.slots_left(self._number), self._parties.server.active_run(RUN).run_digest
        header = f"Bearer {token(self._number)}"
        caller = self._parties.admission.caller(header, lambda: request_text(digest, request))
        answer = await self._parties.ask_server(lambda coordinator: coordinator.tickets(RUN, request, caller))
        assert sum(grant.count for grant in answer.grants) <= left, "a token that gets no slots any more got some"
        if answer.grants and answer.view is not None:
            self.answers.append(answer)
        return answer

    async def terms(self, cohort: Cohort) -> Cohort:
        return self._parties.shuffler.terms(cohort.address)

    async def key_hashes(self, cohort: Cohort) -> KeyHashes:
        raise AssertionError("asked of a masked cohort, and the machine has none")

    async def statements(self, cohort: Cohort, after: int, wait: float) -> StatementList:
        raise AssertionError("asked of a masked cohort, and the machine has none")

    async def actions(self, cohort: Cohort, request: ActionRequest) -> ActionAnswer:
        raise AssertionError("a client asked for an action, and no cohort of the machine assigns any")

    async def records(self, cohort: Cohort, wait: float) -> RecordList:
        for _ in range(int(wait / LOOK)):
            listed = self._parties.reader.records(RUN, cohort.cohort)
            if listed.hashes or listed.over:
                break
            await asyncio.sleep(LOOK)
        return listed

    async def give_receipts(self, cohort: Cohort, receipts: Receipts) -> UploadAnswer:
        await asyncio.sleep(0)  # on the way: the fleet may crash now
        if self.lying and LIAR in receipts.slots:
            at, said = receipts.slots.index(LIAR), bytearray(receipts.answers)
            said[at] ^= 1
            receipts = receipts.model_copy(update={"answers": bytes(said)})
            digest = cohort_digest(cohort)
            self._parties.evidence.liars[digest].add((digest, LIAR, self._number))
        self._parties.evidence.receipts.append(receipts)
        for _ in range(1 + self.twice):
            answer = await self._parties.ask_server(lambda coordinator: coordinator.receipts(RUN, receipts))
        return answer

    async def upload(self, cohort: Cohort, upload: Upload) -> UploadAnswer:
        self._parties.evidence.note(cohort, self._number, upload)
        await asyncio.sleep(self.delay)  # on the way: the fleet may crash now
        for _ in range(1 + self.twice):
            answer = self._parties.shuffler.receive(cohort.address, REPORT, upload)
        return answer

    async def stage(self, cohort: Cohort, after: str, asked: InboxRequest | None, wait: float) -> StageView:
        for _ in range(int(wait / LOOK)):
            view = self._parties.shuffler.view(cohort.address)
            if view.stage != after:
                break
            await asyncio.sleep(LOOK)
        return view

    async def leave(self, cohort: Cohort, leaving: Leaving) -> UploadAnswer:
        return self._parties.shuffler.leave(cohort.address, leaving)
