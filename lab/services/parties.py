"""Reads a run's cohorts and the parties' transcripts: over HTTP, or from the databases of a stack that is stopped."""

import os
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, get_args

from pydantic import ConfigDict

from distrust.common.dp.accounting.guarantee import ShownGuarantee
from distrust.common.errors import BadMessage, BadParameter, RunFailed, Unauthorized, Unavailable, WrongCohort
from distrust.common.extras import late
from distrust.common.protocol.crypto.context import run_digest
from distrust.common.protocol.messages.cohort import Cohort, name_in
from distrust.common.protocol.messages.status import (
    CohortList,
    CohortStage,
    CohortView,
    Transcript,
    TranscriptEntry,
)
from distrust.common.wire import INTERMEDIARIES, Blob, Message, Via
from distrust.lab.services.outline import Outline, Pages, Party, Wanted
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import Urls, running_stack

if TYPE_CHECKING:
    from distrust.aggregator import service as aggregator
    from distrust.common.protocol.intermediary import deadlines
    from distrust.common.protocol.intermediary import tables as intermediary_tables
    from distrust.common.protocol.intermediary.service import Intermediary
    from distrust.common.protocol.run.progress import RoundList
    from distrust.common.protocol.storage import stored_database
    from distrust.common.protocol.storage.stored_database import StoredDatabase
    from distrust.common.protocol.web import client
    from distrust.common.protocol.web.client import Peer
    from distrust.server.reading import transcript
    from distrust.server.reading.transcript import SealKey
    from distrust.server.storage import keys, store
    from distrust.server.storage import tables as server_tables
    from distrust.server.storage.rows import RunRow
    from distrust.shuffler import service as shuffler
else:
    aggregator = late("distrust.aggregator.service")
    client = late("distrust.common.protocol.web.client")
    deadlines = late("distrust.common.protocol.intermediary.deadlines")
    intermediary_tables = late("distrust.common.protocol.intermediary.tables")
    keys = late("distrust.server.storage.keys")
    shuffler = late("distrust.shuffler.service")
    store = late("distrust.server.storage.store")
    stored_database = late("distrust.common.protocol.storage.stored_database")
    server_tables = late("distrust.server.storage.tables")
    transcript = late("distrust.server.reading.transcript")

PAGE = 500  # entries of a transcript in one answer
MOST_EACH = 1000  # messages of each stage and direction that a service picks out; more are read page by page
MOST_MESSAGES = 2 * 10**7  # of a transcript over HTTP: some of each of a million clients
MOST_READ = 64 * 2**20  # bytes of one answer; a page of messages has 10 MB at most

KNOWN_STAGES = frozenset(
    {"cohort", "tickets", "asked", "order", "receipts", *get_args(CohortStage), "departed", "batch", "estimate"}
)
"""Stages of a transcript's messages."""

TOKENS = {"server": ("operator", "--token-file")}
"""Whose token opens a party's transcript, and the option that names its file."""

INSPECTORS = ("inspector", "--inspector-token-file")


UNREADABLE = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of a service's code over stored bytes that no service wrote."""


class _Carrier(Message):
    model_config = ConfigDict(extra="ignore")

    via: Via


class _Report(Message):
    """The part of a `RoundReport` that is shown. Reading the mechanism itself would import all mechanisms."""

    model_config = ConfigDict(extra="ignore")

    config: Blob
    run_id: Blob
    number: int
    mechanism: _Carrier
    guarantee: ShownGuarantee
    cohorts: list[CohortView]


class Services:
    """Services that are up, by their addresses; any of them may be missing. Use it in an `async with` block.

    missing  by party, why its messages are not shown.
    """

    def __init__(self, urls: Urls) -> None:
        self._urls, self._http = urls, client.Http(client.Patience(first=0.2, longest=1.0, total=5.0), most=MOST_READ)
        self.missing: dict[Party, str] = {}
        everyone: tuple[Party, ...] = (*INTERMEDIARIES, "server")
        for party in everyone:
            if not getattr(urls, party):
                self.missing[party] = f"no address was given for it (--{party})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def outline(self, wanted: Wanted) -> Outline:
        """Return a round as the server reports it; without a server, as an intermediary lists its cohorts.

        Raises WrongCohort; Unauthorized for a list of cohorts without the operator's token.
        """
        if self._urls.server:
            path = f"/v1/runs/{wanted.run}/rounds/{wanted.round}"
            report = await self._peer("server", self._urls.token).get(path, _Report)
            digest = run_digest(report.config, report.run_id)
            return Outline(report.number, report.mechanism.via, report.guarantee, report.cohorts, digest, report.config)
        called = [party for party in INTERMEDIARIES if party not in self.missing]
        for party in called:
            listed = (await self._listed(party)).cohorts
            cohorts = [one for one in listed if (one.run, one.round) == (wanted.run, wanted.round)]
            if cohorts:  # of the newest run of that name, where a server has made it anew
                own = cohorts[-1].run_digest
                return Outline(wanted.round, party, None, [one for one in cohorts if one.run_digest == own], own)
        where = f"round {wanted.round} of run {wanted.run}"
        raise WrongCohort(f"no cohort of {where} is known to the {' or the '.join(called)}")

    async def pages(self, party: Party, wanted: Wanted, address: str) -> Pages | None:
        """Return the first messages of each stage; None for a party without an address, or without its token."""
        if party in self.missing:
            return None
        server = party == "server"
        token = self._urls.token if server else self._urls.inspector
        path = f"/v1/runs/{wanted.run}/cohorts/{name_in(address)}" if server else f"/v1/cohorts/{address}"
        try:
            return await self._read(self._peer(party, token), f"{path}/messages", wanted.limit)
        except Unauthorized:
            if token is not None:
                raise
        whose, option = TOKENS.get(party, INSPECTORS)
        self.missing[party] = f"it wants the {whose}'s token, and none was given ({option})"
        return None

    async def terms(self, party: Via, _wanted: Wanted, address: str) -> Cohort:
        """Return a cohort as it was opened at its intermediary. Raises WrongCohort, BadParameter without an address."""
        if party in self.missing:
            raise BadParameter(party, None, f"give the {party}'s address: it holds the clients' messages of this run")
        return await self._peer(party, None).get(f"/v1/cohorts/{address}/terms", Cohort)

    async def _read(self, peer: "Peer", path: str, most: int) -> Pages:
        """Read the first `most` messages of each stage, in one page mostly, with the number of all.

        A service that does not know `each` answers with every message, page by page. They are counted here.

        Raises BadMessage for a transcript that would never end, or grow for ever.
        """
        shown, total, scrubbed, counts = [], 0, None, Counter[tuple[str, str]]()
        after: int | None = 0
        wanted = {"each": most} if most <= MOST_EACH else {}
        while after is not None:
            page = await peer.get(path, Transcript, {"after": after, "limit": PAGE, **wanted})
            strange = sorted({message.stage for message in page.messages} - KNOWN_STAGES)
            if strange or page.total > MOST_MESSAGES:
                what = f"the stage {strange[0]!r}" if strange else f"{page.total:,} messages"
                raise BadMessage(f"{peer!r} answered with a transcript that cannot be: it has {what}")
            shown += first_of_each(page.messages, most, counts)
            scrubbed = page.scrubbed
            total, after = page.total, next_page(page, len(page.messages), after, PAGE, sampled=bool(wanted))
        return Pages(total, shown, scrubbed)

    async def _listed(self, party: Via) -> CohortList:
        """Return the cohorts of an intermediary. Raises Unauthorized, naming the option, without a token."""
        try:
            return await self._peer(party, self._urls.token).get("/v1/cohorts", CohortList)
        except Unauthorized as error:
            if self._urls.token is not None:
                raise
            whose, option = TOKENS["server"]
            why = f"the {party} lists its cohorts for the {whose}'s token alone: give it ({option}), or --server"
            raise Unauthorized(why) from error

    def _peer(self, party: Party, token: str | None) -> "Peer":
        return self._http.peer(getattr(self._urls, party), token)


def next_page(
    page: "Transcript | RoundList", entries: int, after: int, asked: int, *, sampled: bool = False
) -> int | None:
    """Return where the following page begins; None after the last one.

    entries  how many the page has.
    after    where it begins.
    asked    how many were asked for: every page but the last has as many.
    sampled  whether the list leaves entries out.
    Raises   BadMessage for a page that leads back, beyond the end, or on after few entries: reading would never end.
    """
    if page.next is None:
        return None
    onwards = page.next == after + asked or (sampled and page.next > after + asked)
    if entries == asked > 0 and onwards and page.next <= page.total:
        return page.next
    where = f"page {after} to {after + entries} of {page.total} leads to {page.next}"
    raise BadMessage(f"a list that cannot be: its {where}")


def first_of_each(
    entries: Iterable[TranscriptEntry], most: int, counts: Counter[tuple[str, str]]
) -> list[TranscriptEntry]:
    """Return the first `most` entries of every stage and direction. counts: those before, which it adds to."""
    kept = []
    for entry in entries:
        kind = entry.stage, entry.direction
        counts[kind] += 1
        kept += [entry] if counts[kind] <= most else []
    return kept


class StoredParties:
    """The databases of a local stack that does not run, read by the services' own code as they stand.

    No process is started, and nothing is written but what `StoredDatabase` names. Only a user who may read the files
    gets anything. `missing` is as that of `Services`.

    Raises  BadParameter for a folder without a server's database, or with one that this user may not read. Reading
            raises BadParameter or BadMessage where the server's database is damaged.
    """

    def __init__(self, data_dir: DataDir) -> None:
        self._data_dir = data_dir
        self.missing: dict[Party, str] = {}
        path = data_dir.file("server")
        if not os.access(path, os.R_OK):
            closed = os.access(data_dir.path, os.F_OK) and not os.access(data_dir.path, os.X_OK)
            if closed or os.access(path, os.F_OK):
                raise BadParameter("data", str(data_dir.path), f"{path.name} may be read by its owner only")
            raise BadParameter("data", str(data_dir.path), "no server's database is there: nothing has run on it")
        self._store = store.Store(_stored(path, server_tables.VERSION))
        self._runs: dict[str, RunRow] = {}
        self._services: dict[Via, Intermediary | None] = {}

    async def outline(self, wanted: Wanted) -> Outline:
        """Return a round as the server stored it. Raises WrongCohort, RunFailed."""
        with _readable(f"round {wanted.round} of run {wanted.run}"):
            row = self._run(wanted.run)
            stored = transcript.stored_round(self._store, row.config, wanted.round)
        facts, config = (stored.number, stored.intermediary, stored.guarantee, stored.cohorts), row.config.digest()
        return Outline(*facts, run_digest(config, row.identity.run_id), config)

    async def pages(self, party: Party, wanted: Wanted, address: str) -> Pages | None:
        """Return the first messages of each stage; None for an intermediary whose database is not here."""
        if party == "server":
            with _readable(f"cohort {name_in(address)}"):
                row = self._run(wanted.run)
                own = self._key(row), row.config, name_in(address), wanted.limit
                sample = transcript.stored_sample(self._store, *own)
                return Pages(sample.total, sample.messages, sample.scrubbed)
        try:
            if party not in self._services:
                self._services[party] = self._intermediary(party)
            service = self._services[party]
            with _readable(f"cohort {name_in(address)}"):
                return None if service is None else Pages(*service.stored_sample(address, wanted.limit))
        except (BadMessage, BadParameter, Unavailable, WrongCohort) as error:
            self.missing[party] = error.detail
            return None

    async def terms(self, _party: Via, wanted: Wanted, address: str) -> Cohort:
        """Return a cohort as the server opened it. Raises WrongCohort."""
        with _readable(f"cohort {name_in(address)}"):
            return transcript.stored_cohort(self._store, wanted.run, name_in(address))

    def _run(self, run: str) -> "RunRow":
        if run not in self._runs:
            self._runs[run] = transcript.stored_run(self._store, run)
        return self._runs[run]

    def _key(self, row: "RunRow") -> "SealKey":
        """Return the run's key, or None where it is not at hand. Then records show as refused."""
        digest = run_digest(row.config.digest(), row.identity.run_id)
        try:
            folder = keys.KeyFolder(keys.folder_for(self._data_dir.database("server")))
            return folder.read(digest, row.identity.keys).seal
        except (RunFailed, Unavailable):
            return None

    def _intermediary(self, party: Via) -> "Intermediary | None":
        """Return an intermediary's service over its database; None, with the reason in `missing`, without one."""
        path = self._data_dir.file(party)
        if not path.exists() or not os.access(path, os.R_OK):
            lacks = "may be read by its owner only" if path.exists() else "is not there"
            self.missing[party] = f"its database {path} {lacks}"
            return None
        kind = aggregator.Aggregator if party == "aggregator" else shuffler.Shuffler
        return kind(_stored(path, intermediary_tables.VERSION), deadlines.SystemClock())


Parties = Services | StoredParties
"""The parties of a run, as one reader reaches them."""


@contextmanager
def _readable(what: str) -> Iterator[None]:
    """Raise BadMessage for stored bytes that are not what the service wrote: its code believes what it reads."""
    try:
        yield
    except UNREADABLE as error:
        raise BadMessage(f"what the database has of {what} cannot be read: {type(error).__name__}") from error


def _stored(path: Path, version: str) -> "StoredDatabase":
    return stored_database.StoredDatabase(path, version)


@asynccontextmanager
async def reached(where: Urls | DataDir) -> AsyncIterator[Parties]:
    """Yield the parties at these addresses; of a folder its running services, or else its databases."""
    urls = where if isinstance(where, Urls) else running_stack(where)
    if urls is not None:
        async with Services(urls) as services:
            yield services
    elif isinstance(where, DataDir):
        yield StoredParties(where)
