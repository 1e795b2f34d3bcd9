"""Stores the server's state. Every write is one transaction, committed before anything is answered or used."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, Literal, Unpack, cast

from sqlalchemy import Connection, Select, bindparam, delete, false, func, insert, literal, select, update
from sqlalchemy.exc import IntegrityError

from distrust.common.protocol.crypto.context import cohort_digest, run_digest
from distrust.common.protocol.intermediary.deadlines import Clock, SystemClock
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort, TicketRequest
from distrust.common.protocol.messages.status import Statement
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.progress import EventKind, RegretCurve, RunEvent, RunState
from distrust.common.protocol.storage.database import POOL, Database
from distrust.common.protocol.storage.database_faults import Collision
from distrust.common.wire import Via
from distrust.server.learner.rounds import OUTCOME_JSON, LostCohort, ReleasedCohort
from distrust.server.storage.keys import PublicKeys, RunIdentity
from distrust.server.storage.rows import CohortRow, EventDetails, GrantRow, RunRow, UnreadRun, read_run
from distrust.server.storage.tables import (
    BATCHES,
    COHORTS,
    ENDED,
    EVENTS,
    GRANTS,
    METADATA,
    OUTCOMES,
    QUOTAS,
    RECEIPTS,
    REGRETS,
    RUNS,
    STATEMENTS,
    VERSION,
)

EndState = Literal["finished", "failed", "cancelled"]

# Each statement is built once: building and naming one for SQLAlchemy's cache costs more than running it.
_RUN_COHORTS = select(*(COHORTS.c[name] for name in ("cohort", "round", "clients", "granted", "state", "lost")))
_RUN_COHORTS = _RUN_COHORTS.where(COHORTS.c.run == bindparam("run"))
_RUN_COHORTS = _RUN_COHORTS.where(COHORTS.c.round.between(bindparam("first"), bindparam("last")))
_DIGESTS_ASKED = 500  # values in one SQL list, well below every database's limit
_AT = COHORTS.c.run == bindparam("run"), COHORTS.c.via == bindparam("via")
_KNOWN_DIGESTS = select(COHORTS.c.digest).where(COHORTS.c.digest.in_(bindparam("digests", expanding=True)), *_AT)
_RELEASED_DIGESTS = select(COHORTS.c.digest).where(*_AT, COHORTS.c.state == "released")
_MESSAGE = select(COHORTS.c.message).where(COHORTS.c.cohort == bindparam("cohort"))
_OUTCOME = select(OUTCOMES.c.body).where(OUTCOMES.c.cohort == bindparam("cohort"))
_HAS_BATCH = select(BATCHES.c.cohort).where(BATCHES.c.cohort == bindparam("cohort"))
_SCRUBBED = select(COHORTS.c.scrubbed).where(COHORTS.c.cohort == bindparam("cohort"))
_BATCH = select(BATCHES.c.body).where(BATCHES.c.cohort == bindparam("cohort"))
_GRANT_COLUMNS = [GRANTS.c[name] for name in ("round", "want", "cohort", "first", "count", "key_hashes", "participant")]
_GRANTS = select(*_GRANT_COLUMNS).order_by(GRANTS.c.number)
_REQUEST_GRANTS = _GRANTS.where(GRANTS.c.run == bindparam("run"), GRANTS.c.request == bindparam("request"))
_COHORT_GRANTS = _GRANTS.where(GRANTS.c.cohort == bindparam("cohort"))
_STATEMENTS = select(STATEMENTS.c.stage, STATEMENTS.c.digest).where(STATEMENTS.c.cohort == bindparam("cohort"))
_STATEMENTS = _STATEMENTS.order_by(STATEMENTS.c.number)
_NEWEST_EVENT = select(func.max(EVENTS.c.number)).where(EVENTS.c.run == bindparam("run"))
_LATER_EVENTS = select(EVENTS.c.number, EVENTS.c.body).where(EVENTS.c.run == bindparam("run"))
_LATER_EVENTS = _LATER_EVENTS.where(EVENTS.c.number > bindparam("after")).order_by(EVENTS.c.number)
_LATER_EVENTS = _LATER_EVENTS.limit(bindparam("limit"))
_TAKEN = select(GRANTS.c.cohort, GRANTS.c.participant, func.sum(GRANTS.c.count))
_TAKEN = _TAKEN.where(GRANTS.c.cohort.in_(bindparam("cohorts", expanding=True)), GRANTS.c.participant.is_not(None))
_TAKEN = _TAKEN.group_by(GRANTS.c.cohort, GRANTS.c.participant)
_FORGET = update(GRANTS).where(GRANTS.c.cohort == bindparam("over"), GRANTS.c.participant.is_not(None))
_FORGET = _FORGET.values(participant=None)
_SPENT = select(QUOTAS.c.slots).where(QUOTAS.c.participant == bindparam("participant"))
_SPEND = update(QUOTAS).where(QUOTAS.c.participant == bindparam("spender"))
_SPEND = _SPEND.values(slots=QUOTAS.c.slots + bindparam("more"))
_ADD_COHORT, _ADD_GRANT, _ADD_STATEMENT = insert(COHORTS), insert(GRANTS), insert(STATEMENTS)
_ADD_OUTCOME, _ADD_BATCH, _ADD_EVENT = insert(OUTCOMES), insert(BATCHES), insert(EVENTS)
_ADD_RECEIPT, _KEEP = insert(RECEIPTS), insert(ENDED)
_RECEIPTS = select(RECEIPTS.c.slot, RECEIPTS.c.present).where(RECEIPTS.c.cohort == bindparam("cohort"))
_CHANGE_COHORT = update(COHORTS).where(COHORTS.c.cohort == bindparam("changed"))


def open_database(url: str, pool: int = POOL) -> Database:
    """Return the server's database, with its tables."""
    return Database(url, METADATA, VERSION, pool)


class Writing:
    """One transaction's changes. The caller leaves the `with` block of `Store.writing` to commit them."""

    def __init__(self, connection: Connection, now: float) -> None:
        self._do, self._now = connection.execute, now
        self._events: list[dict[str, str]] = []

    def run(self, config: RunConfig, identity: RunIdentity) -> None:
        row = {"run": config.run, "config": config.canonical().decode(), "digest": config.digest(), "state": "running"}
        keys = {"ticket_key": identity.keys.ticket, "seal_key": identity.keys.seal}
        self._do(insert(RUNS).values({**row, "run_id": identity.run_id, **keys, "started": self._now}))

    def end(self, run: str, keep_seconds: float, state: EndState, reason: str | None, arm: int | None = None) -> None:
        """End a run, and tell its listeners. Its open cohorts will have no outcome: nothing of them is collected.

        arm  that was chosen.
        """
        self.event(run, state, arm=arm, detail=reason)
        self._do(update(RUNS).where(RUNS.c.run == run).values(state=state, reason=reason, ended=self._now))
        self._do(update(GRANTS).where(GRANTS.c.run == run).values(participant=None))
        due = self._now + keep_seconds
        columns = [COHORTS.c.cohort, COHORTS.c.run, COHORTS.c.via, literal(due), false()]
        opened = select(*columns).where(COHORTS.c.run == run, COHORTS.c.state == "open")
        self._do(insert(ENDED).from_select(["cohort", "run", "via", "due", "told"], opened))

    def cohort(self, cohort: Cohort, granted: int = 0) -> None:
        """Add a cohort as it is opened. `granted`: slots of which tickets are handed out with it."""
        row = {"cohort": cohort.cohort, "run": cohort.run, "round": cohort.round, "clients": cohort.clients}
        row |= {"granted": granted, "state": "open", "via": cohort.via, "digest": cohort_digest(cohort)}
        self._do(_ADD_COHORT, {**row, "message": cohort.model_dump_json()})

    def grant(self, run: str, request: TicketRequest, grant: GrantRow) -> None:
        """Add a grant. Raises Collision where its first slot is granted by now: the caller has read too early."""
        row = {"run": run, "request": request.request, **asdict(grant)}
        try:
            self._do(_ADD_GRANT, row)
        except IntegrityError as error:
            raise Collision(f"slot {grant.first} of cohort {grant.cohort} was granted meanwhile") from error

    def granted(self, cohort: str, granted: int) -> None:
        """Note that all slots of a cohort before this one have tickets."""
        self._do(_CHANGE_COHORT, {"changed": cohort, "granted": granted})

    def spend(self, participant: str, slots: int) -> None:
        """Count slots of a participant with a quota."""
        if not self._do(_SPEND, {"spender": participant, "more": slots}).rowcount:
            self._do(insert(QUOTAS).values(participant=participant, slots=slots))

    def statement(self, cohort: str, statement: Statement) -> None:
        self._do(_ADD_STATEMENT, {"cohort": cohort, **statement.model_dump()})

    def batch(self, answer: BatchAnswer) -> None:
        self._do(_ADD_BATCH, {"cohort": answer.cohort, "body": answer.model_dump_json()})

    def add_receipts(self, cohort: str, answers: Mapping[int, bool]) -> None:
        """Add what clients say of their records, by slot."""
        self._do(_ADD_RECEIPT, [{"cohort": cohort, "slot": slot, "present": one} for slot, one in answers.items()])

    def outcome(
        self, cohort: Cohort, outcome: ReleasedCohort | LostCohort, answer: BatchAnswer, *, noted: bool
    ) -> None:
        """Add how a cohort ended, and forget who had which of its slots. From now on its batch is kept for a while.

        The caller adds the batch, unless it was listed for receipts before.

        noted  whether a caller's slots of the cohort were counted. If not, there is nothing to forget.
        """
        if noted:
            self._do(_FORGET, {"over": outcome.cohort})
        body = outcome.model_dump_json()
        self._do(_ADD_OUTCOME, {"run": cohort.run, "cohort": outcome.cohort, "body": body})
        due = self._now + cohort.keep_seconds
        self._do(_KEEP, {"cohort": cohort.cohort, "run": cohort.run, "via": cohort.via, "due": due, "told": False})
        lost = answer.lost + unread(outcome, answer)
        self._do(_CHANGE_COHORT, {"changed": outcome.cohort, "state": outcome.kind, "lost": lost})

    def event(self, run: str, kind: EventKind, **details: Unpack[EventDetails]) -> None:
        """Add an event, with the others of this transaction.

        Its row's number becomes its own when it is read; the stored text has a 1 there.
        """
        body = RunEvent(number=1, run=run, kind=kind, **details).model_dump_json(exclude_none=True)
        self._events.append({"run": run, "body": body})

    def add_events(self) -> None:
        """Add the events of this transaction in one statement. `Store.writing` calls it last."""
        if self._events:
            self._do(_ADD_EVENT, self._events)

    def regret(self, run: str, regret: RegretCurve) -> None:
        """Put a driver's curve in place of the one before."""
        self._do(delete(REGRETS).where(REGRETS.c.run == run))
        self._do(insert(REGRETS).values(run=run, body=regret.model_dump_json()))


def unread(outcome: ReleasedCohort | LostCohort, answer: BatchAnswer) -> int:
    """Return how many of a released batch's records did not count: they did not open, or held no vector."""
    if answer.batch is None or not isinstance(outcome, ReleasedCohort):
        return 0
    return answer.batch.survivors - outcome.survivors


class Store:
    """The server's database: reads, and transactions to write."""

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        self.database, self.clock = database, clock or SystemClock()

    @contextmanager
    def writing(self) -> Iterator[Writing]:
        """Open a transaction: committed when the block ends, rolled back when it raises. See `Database.transaction`."""
        with self.database.transaction() as connection:
            writing = Writing(connection, self.clock.now())
            yield writing
            writing.add_events()

    def read(self, query: Select[Any], values: Mapping[str, Any] | None = None) -> Sequence[Any]:
        """Return the rows of a query, each with its columns as attributes, in a transaction of its own."""
        with self.database.reading() as connection:
            return connection.execute(query, values).all()

    def value(self, query: Select[Any], values: Mapping[str, Any]) -> Any:
        """Return the first row's first column; None without a row."""
        with self.database.reading() as connection:
            return connection.execute(query, values).scalar()

    def runs(self) -> list[RunRow | UnreadRun]:
        """Return all runs, oldest first."""
        stored = []
        for row in self.read(select(RUNS).order_by(RUNS.c.number)):
            identity = RunIdentity(row.run_id, PublicKeys(row.ticket_key, row.seal_key))
            stored.append(read_run(row.run, row.config, identity, row.state, row.reason))
        return stored

    def open_runs(self) -> dict[str, bytes]:
        """Return R of each run that is not over, by its name; also of one whose configuration is refused today."""
        query = select(RUNS.c.run, RUNS.c.digest, RUNS.c.run_id).where(RUNS.c.state == "running")
        return {row.run: run_digest(row.digest, row.run_id) for row in self.read(query)}

    def state(self, run: str) -> tuple[RunState, str | None]:
        """Return a run's state and its reason."""
        ((state, reason),) = self.read(select(RUNS.c.state, RUNS.c.reason).where(RUNS.c.run == run))
        return state, reason

    def outcomes(self, run: str) -> list[ReleasedCohort | LostCohort]:
        """Return a run's outcomes in the order in which they were absorbed."""
        query = select(OUTCOMES.c.body).where(OUTCOMES.c.run == run).order_by(OUTCOMES.c.number)
        return [OUTCOME_JSON.validate_json(body) for (body,) in self.read(query)]

    def cohorts(self, run: str, first: int, last: int | None = None) -> dict[str, CohortRow]:
        """Return the opened cohorts of a run's rounds `first` to `last`; without `last` of one round.

        Each call looks at all cohorts of the run.
        """
        rounds = {"run": run, "first": first, "last": first if last is None else last}
        return {row.cohort: CohortRow(*row) for row in self.read(_RUN_COHORTS, rounds)}

    def intermediaries(self, run: str) -> set[Via]:
        """Return the intermediaries at which this run has opened cohorts."""
        return {row.via for row in self.read(select(COHORTS.c.via).where(COHORTS.c.run == run).distinct())}

    def known_digests(self, run: str, via: Via, digests: Sequence[bytes]) -> set[bytes]:
        """Return those of the digests that are of a run's cohorts at an intermediary."""
        parts = (digests[start : start + _DIGESTS_ASKED] for start in range(0, len(digests), _DIGESTS_ASKED))
        at = {"run": run, "via": via}
        return {row.digest for part in parts for row in self.read(_KNOWN_DIGESTS, {**at, "digests": part})}

    def count_cohorts(self, run: str, via: Via) -> int:
        """Return how many cohorts a run has opened at an intermediary."""
        return int(self.value(select(func.count()).select_from(COHORTS).where(*_AT), {"run": run, "via": via}))

    def released_digests(self, run: str, via: Via) -> set[bytes]:
        """Return the digests of a run's cohorts at an intermediary that have a released outcome."""
        return {row.digest for row in self.read(_RELEASED_DIGESTS, {"run": run, "via": via})}

    def cohort_counts(self, run: str) -> dict[str, tuple[int, int]]:
        """Return by state (cohorts, tickets issued)."""
        columns = (COHORTS.c.state, func.count(), func.sum(COHORTS.c.granted))
        query = select(*columns).where(COHORTS.c.run == run).group_by(COHORTS.c.state)
        return {state: (int(cohorts), int(granted)) for state, cohorts, granted in self.read(query)}

    def cohort_message(self, cohort: str) -> Cohort | None:
        """Return the cohort as it was opened at its intermediary, byte for byte."""
        text = self.value(_MESSAGE, {"cohort": cohort})
        return None if text is None else Cohort.model_validate_json(text)

    def outcome(self, cohort: str) -> ReleasedCohort | LostCohort | None:
        body = self.value(_OUTCOME, {"cohort": cohort})
        return None if body is None else OUTCOME_JSON.validate_json(body)

    def batch(self, cohort: str) -> BatchAnswer | None:
        body = self.value(_BATCH, {"cohort": cohort})
        return None if body is None else BatchAnswer.model_validate_json(body)

    def has_batch(self, cohort: str) -> bool:
        """Return whether a cohort's batch was collected, also where it was scrubbed since."""
        return self.value(_HAS_BATCH, {"cohort": cohort}) is not None

    def scrubbed(self, cohort: str) -> float | None:
        """Return when a cohort's batch was scrubbed."""
        return cast("float | None", self.value(_SCRUBBED, {"cohort": cohort}))

    def receipts(self, cohort: str) -> dict[int, bool]:
        """Return by slot what clients have said: whether their records are in the batch."""
        return {row.slot: row.present for row in self.read(_RECEIPTS, {"cohort": cohort})}

    def regret(self, run: str) -> RegretCurve | None:
        """Return the curve that a driver posted last."""
        body = self.value(select(REGRETS.c.body).where(REGRETS.c.run == bindparam("run")), {"run": run})
        return None if body is None else RegretCurve.model_validate_json(body)

    def grants(self, run: str, request: str) -> list[GrantRow]:
        """Return the slots that this request got before, in order."""
        return [GrantRow(*row) for row in self.read(_REQUEST_GRANTS, {"run": run, "request": request})]

    def with_taken(self, rows: dict[str, CohortRow]) -> dict[str, CohortRow]:
        """Return opened cohorts with the slots that callers with a limit have in each."""
        taken: dict[str, dict[str, int]] = {}
        for start in range(0, len(rows), _DIGESTS_ASKED):
            for cohort, participant, count in self.read(_TAKEN, {"cohorts": [*rows][start : start + _DIGESTS_ASKED]}):
                taken.setdefault(cohort, {})[participant] = int(count)
        return rows | {cohort: replace(rows[cohort], taken=theirs) for cohort, theirs in taken.items()}

    def spent(self, participant: str) -> int:
        """Return how many slots a participant with a quota has got."""
        return self.value(_SPENT, {"participant": participant}) or 0

    def cohort_grants(self, cohort: str) -> list[GrantRow]:
        return [GrantRow(*row) for row in self.read(_COHORT_GRANTS, {"cohort": cohort})]

    def key_hashes(self, cohort: str) -> bytes:
        """Return the hashes that came with a cohort's ticket requests, 32 bytes a slot, slot by slot."""
        return b"".join(row.key_hashes for row in sorted(self.cohort_grants(cohort), key=lambda row: row.first))

    def statements(self, cohort: str) -> list[Statement]:
        """Return a cohort's statements in the order of its stages."""
        return [Statement(stage=stage, digest=digest) for stage, digest in self.read(_STATEMENTS, {"cohort": cohort})]

    def events(self, run: str, after: int, limit: int) -> list[RunEvent]:
        """Return the events with a number above `after`, in order."""
        rows = self.read(_LATER_EVENTS, {"run": run, "after": after, "limit": limit})
        return [RunEvent.model_validate({**json.loads(body), "number": number}) for number, body in rows]

    def newest_event(self, run: str) -> int:
        """Return the number of the run's newest event, 0 before the first."""
        return self.value(_NEWEST_EVENT, {"run": run}) or 0
