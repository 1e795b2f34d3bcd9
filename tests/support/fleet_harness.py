"""A server without HTTP for a fleet to play with, in front of the real shuffler and the real aggregator."""

import asyncio
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from distrust.aggregator.service import Aggregator
from distrust.client.fleet.fleet import Fleet
from distrust.common.errors import WrongStage
from distrust.common.protocol.crypto.graph import bitmap_flags
from distrust.common.protocol.crypto.receipts import record_list
from distrust.common.protocol.intermediary.service import Intermediary
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import (
    Cohort,
    Grant,
    KeyHashes,
    TicketRequest,
    ticket_text,
)
from distrust.common.protocol.messages.status import RecordList, StageView, StatementList
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
from distrust.common.protocol.run.round import Round, RoundView, TicketAnswer
from distrust.shuffler.service import Shuffler

RUN_ID = bytes(range(16))
"""Id of every run here."""

CONFIGS: dict[bytes, RunConfig] = {}
"""Configurations by R, the digest of their run, as far as rounds of them were made (see `conftest.make_round`)."""

LOOK = 0.005
PATIENCE = 240.0


def config_of(round_: Round) -> RunConfig:
    """Return the configuration that a round was made from."""
    return CONFIGS[round_.assignments[0].cohort.run_digest]


def serve(*fleets: Fleet) -> list[str]:
    """Serve all the fleets at once until they end, and return the state in which each ended."""

    async def together() -> list[str]:
        return list(await asyncio.wait_for(asyncio.gather(*(fleet.serve() for fleet in fleets)), PATIENCE))

    return asyncio.run(together())


class FleetHarness:
    """Serves rounds one after another to any number of fleets.

    A round is over when the intermediary has ended all its cohorts.
    """

    def __init__(self, rounds: list[Round], intermediary: Intermediary, key: Ed25519PrivateKey) -> None:
        self.rounds, self.intermediary, self._key = rounds, intermediary, key
        self._given: Counter[str] = Counter()
        self._at = 0
        self.hashes: defaultdict[str, bytes] = defaultdict(bytes)
        self.receipts: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self.uploads: list[Upload] = []
        self.inboxes = 0  # looks that asked for inboxes
        self.departures: list[Leaving] = []
        self.action_requests: list[ActionRequest] = []
        self.looks: list[str] = []  # at the cohort as the intermediary knows it
        self.cancelled = False
        self._pool = ThreadPoolExecutor(1)  # one at a time, like a service with one writer
        self.threads: set[int] = set()
        for cohort in self._cohorts():
            intermediary.open(cohort)

    async def round(self, after: int, wait: float) -> RoundView:
        """Return the open round at once: fleets must not rely on a server that waits."""
        await asyncio.sleep(0)
        while self._at < len(self.rounds) and all(map(self._ended, self._cohorts())):
            self._at += 1
            for cohort in self._cohorts():
                self.intermediary.open(cohort)
        if self.cancelled or self._at == len(self.rounds):
            state = "cancelled" if self.cancelled else "finished"
            return RoundView.model_validate({"run": "demo", "state": state, **self._identity})
        return RoundView.model_validate(
            {"run": "demo", "state": "open", **self._identity, "round": self.rounds[self._at]}
        )

    @property
    def _identity(self) -> dict[str, bytes]:
        return {"config": config_of(self.rounds[0]).digest(), "run_id": RUN_ID}

    async def config(self) -> RunConfig:
        return config_of(self.rounds[0])

    async def key_hashes(self, cohort: Cohort) -> KeyHashes:
        return KeyHashes(cohort=cohort.cohort, hashes=self.hashes[cohort.cohort])

    async def statements(self, cohort: Cohort, after: int, wait: float) -> StatementList:
        """Return the aggregator's statements after the first `after`, as a server passes them on."""
        del wait
        await asyncio.sleep(LOOK)
        assert isinstance(self.intermediary, Aggregator)
        result: StatementList = await self._call(self.intermediary.statements, cohort.address, after)
        return result

    async def records(self, cohort: Cohort, wait: float) -> RecordList:
        """Return the list of the records of the batch, as the server collects it."""
        del wait
        batch = BatchAnswer.model_validate_json(await self._call(self.intermediary.batch, cohort.address)).batch
        assert batch is not None
        return RecordList(cohort=cohort.cohort, hashes=record_list(cohort, batch), over=False)

    async def give_receipts(self, cohort: Cohort, receipts: Receipts) -> UploadAnswer:
        """Take the receipts. `receipts` has the answers by cohort and slot."""
        await asyncio.sleep(0)
        self.receipts[cohort.cohort] |= dict(zip(receipts.slots, receipts.answers, strict=True))
        return UploadAnswer(accepted=len(receipts.slots), refused=[])

    async def tickets(self, request: TicketRequest, wait: float) -> TicketAnswer:
        """Return what is free at once: fleets must not rely on a server that waits."""
        view = None if request.round else await self.round(0, wait)
        await asyncio.sleep(0)
        if view is not None and view.round is None:
            return TicketAnswer(grants=[], view=view)
        if request.round and (self._at == len(self.rounds) or request.round != self.rounds[self._at].number):
            raise WrongStage("another round is open")
        want, grants = request.want, []
        for cohort in self._cohorts():
            count = min(want, cohort.clients - self._given[cohort.cohort])
            if count:
                used = request.want - want
                self.hashes[cohort.cohort] += request.keys[32 * used : 32 * (used + count)]
                grants.append(self._sign(cohort, self._given[cohort.cohort], count))
                self._given[cohort.cohort] += count
                want -= count
        return TicketAnswer(grants=grants, view=view)

    async def terms(self, cohort: Cohort) -> Cohort:
        self.looks.append(cohort.cohort)
        return await self._call(self.intermediary.terms, cohort.address)

    async def actions(self, cohort: Cohort, request: ActionRequest) -> ActionAnswer:
        assert isinstance(self.intermediary, Shuffler)
        self.action_requests.append(request)
        result: ActionAnswer = await self._call(self.intermediary.actions, cohort.address, request)
        return result

    async def upload(self, cohort: Cohort, upload: Upload) -> UploadAnswer:
        self.threads.add(threading.get_ident())
        self.uploads.append(upload)
        return await self._call(self.intermediary.receive, cohort.address, upload.stage, upload)

    async def stage(self, cohort: Cohort, after: str, asked: InboxRequest | None, wait: float) -> StageView:
        self.inboxes += asked is not None
        for _ in range(max(1, int(wait / LOOK))):
            view = await self._call(self.intermediary.view, cohort.address, *([] if asked is None else [asked.slots]))
            if view.stage != after:
                break
            await asyncio.sleep(LOOK)
        return view

    async def leave(self, cohort: Cohort, leaving: Leaving) -> UploadAnswer:
        self.departures.append(leaving)
        return await self._call(self.intermediary.leave, cohort.address, leaving)

    async def _call(self, function: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    def _cohorts(self) -> list[Cohort]:
        return [one.cohort for one in self.rounds[self._at].assignments] if self._at < len(self.rounds) else []

    def _ended(self, cohort: Cohort) -> bool:
        view = self.intermediary.view(cohort.address)
        return view.stage == "aborted" or (view.stage == "done" and self._is_settled(cohort, view))

    def _is_settled(self, cohort: Cohort, view: StageView) -> bool:
        """Return whether all clients of a crowd whose reports were taken have given their receipts."""
        survivors = int(bitmap_flags(view.members, cohort.clients).sum())
        return not cohort.receipts or len(self.receipts[cohort.cohort]) >= survivors

    def _sign(self, cohort: Cohort, first: int, count: int) -> Grant:
        hashes = self.hashes[cohort.cohort] if cohort.via == "aggregator" else b""
        texts = [ticket_text(cohort, slot, hashes[32 * slot : 32 * (slot + 1)]) for slot in range(first, first + count)]
        signatures = b"".join(map(self._key.sign, texts))
        return Grant(cohort=cohort.cohort, first=first, count=count, signatures=signatures)


class LyingFleetHarness(FleetHarness):
    """Tells the clients one cohort, and the intermediary another."""

    def __init__(self, round_: Round, shown: Cohort, intermediary: Intermediary, key: Ed25519PrivateKey) -> None:
        self.shown = shown
        super().__init__([round_], intermediary, key)

    def _cohorts(self) -> list[Cohort]:
        return [self.shown]


TICKET_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SEAL_KEY = X25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
