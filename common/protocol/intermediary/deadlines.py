"""Finds the cohorts whose deadlines have passed. Deadlines are stored, so that they outlive a process.

Within a process no deadline moves with the machine's wall clock. As a process starts, the deadlines that it finds are
brought into reach.
"""

import time
from typing import Final, NamedTuple, Protocol

from sqlalchemy import bindparam, exists, or_, select

from distrust.common.protocol.intermediary import store
from distrust.common.protocol.intermediary.store import DEPARTED
from distrust.common.protocol.intermediary.tables import COHORTS, MESSAGES
from distrust.common.protocol.messages.cohort import cohort_address
from distrust.common.protocol.storage.database import Database
from distrust.common.protocol.storage.database_faults import repeated

MIXING: Final = "mixing"
"""The stage after a party's own ones: no message is taken any more, and the batch is computed."""

FIRST_SECONDS = 20.0
"""Default time from the last opening of a cohort to its first message."""

_ANY_USE = exists().where(
    MESSAGES.c.cohort == COHORTS.c.number,
    MESSAGES.c.slot >= 0,
    MESSAGES.c.stage.in_((bindparam("first"), DEPARTED)),
)
_HAS_BEGUN = or_(COHORTS.c.stage != bindparam("first"), _ANY_USE)
_OPEN = select(COHORTS.c.run_digest, COHORTS.c.cohort, COHORTS.c.stage, COHORTS.c.since, _HAS_BEGUN.label("used"))
_RUNNING = _OPEN.where(COHORTS.c.since <= bindparam("now"))
_AHEAD = _OPEN.where(COHORTS.c.since > bindparam("now"))


class Clock(Protocol):
    """Seconds since the epoch."""

    def now(self) -> float: ...


class SystemClock:
    """The machine's wall clock as it was when the process started, and the seconds since then."""

    def __init__(self) -> None:
        self._start = time.time() - time.monotonic()

    def now(self) -> float:
        return self._start + time.monotonic()


class _Running(NamedTuple):
    """An open cohort whose time runs: `used`, since its stage began; if not, since its first deadline was over."""

    address: str
    stage: str
    since: float
    used: bool


class Deadlines:
    """The deadlines of all open cohorts of an intermediary.

    first  its first stage, whose time begins with the first message.
    """

    def __init__(self, database: Database, clock: Clock, first: str) -> None:
        self._database, self._clock, self._first = database, clock, first
        self._stage_seconds: dict[str, float] = {}  # by address, of the cohorts that were open at the last look

    def due(self) -> list[str]:
        """Return the addresses of the cohorts whose stage is over by its deadline, and of those that are frozen.

        One query, whatever is open: most cohorts are over.
        """
        now, known = self._clock.now(), self._stage_seconds
        with self._database.reading() as tx:
            rows = tx.execute(_RUNNING, {"first": self._first, "now": now})
            running = [
                _Running(cohort_address(row.run_digest, row.cohort), row.stage, row.since, row.used) for row in rows
            ]
            self._stage_seconds = {
                cohort.address: known.get(cohort.address) or store.need(tx, cohort.address).cohort.stage_seconds
                for cohort in running
            }

        def lasting(cohort: _Running) -> float:
            return self._stage_seconds[cohort.address] if cohort.used and cohort.stage != MIXING else 0.0

        return [cohort.address for cohort in running if now >= cohort.since + lasting(cohort)]

    @repeated
    def rebase(self, first_seconds: float) -> None:
        """Let no deadline be later than if its stage had begun now: the wall clock may have been set back meanwhile.

        Where it was set forward while no process ran, the deadlines that it passed over have passed.
        """
        now = self._clock.now()
        with self._database.transaction() as tx:
            ahead = tx.execute(_AHEAD, {"first": self._first, "now": now}).all()
            for row in ahead:
                state = store.need(tx, cohort_address(row.run_digest, row.cohort), lock=True)
                first = now + min(first_seconds, state.cohort.stage_seconds)
                store.move(tx, state.number, state.stage, now if row.used else min(row.since, first))
