"""Holds what a reader chooses of a run, and what the parties answer of it."""

from dataclasses import dataclass
from typing import Literal

from distrust.common.dp.accounting.guarantee import ShownGuarantee
from distrust.common.errors import BadParameter
from distrust.common.protocol.messages.cohort import cohort_address
from distrust.common.protocol.messages.status import CohortEntry, CohortView, TranscriptEntry
from distrust.common.wire import Via, check_name

Party = Literal["server", "shuffler", "aggregator"]

LONGEST_RUN = 10**9  # a run's horizon at most


@dataclass(frozen=True, slots=True)
class Wanted:
    """Choice of transcripts to show. `limit`: messages of each stage and direction."""

    run: str
    round: int
    cohort: str | None
    limit: int


def wanted_of(run: str, round_number: int | None, cohort: str | None, limit: int) -> Wanted:
    """Return a choice. Without a round it is that in the cohort's name, RUN.ROUND.ARM.ATTEMPT, else the first.

    Raises BadParameter for what cannot be the name of a run or a cohort, or the number of a round.
    """
    check_name("run", run)
    parts = [] if cohort is None else check_name("cohort", cohort).rsplit(".", 3)[1:]
    named = int(parts[0]) if len(parts) == 3 and parts[0].isdecimal() else 1
    number = named if round_number is None else round_number
    if not 1 <= number <= LONGEST_RUN:
        raise BadParameter("round", number, f"must be from 1 to {LONGEST_RUN}")
    return Wanted(run, number, cohort, limit)


@dataclass(frozen=True, slots=True)
class Outline:
    """A round: its number, its cohorts, their intermediary and the weakest of their guarantees.

    guarantee   None where no server is asked. Then the cohorts are as their intermediary lists them.
    run_digest  R: with a cohort's name its address at the intermediary.
    config      digest of the run's configuration; None where no server is asked.
    """

    number: int
    intermediary: Via
    guarantee: ShownGuarantee | None
    cohorts: list[CohortView] | list[CohortEntry]
    run_digest: bytes
    config: bytes | None = None

    def address(self, cohort: str) -> str:
        """Return the address of one of its cohorts."""
        return cohort_address(self.run_digest, cohort)


@dataclass(frozen=True, slots=True)
class Pages:
    """One party's messages of a cohort: those to show, and how many there are in all.

    scrubbed  when others were deleted, in seconds since the epoch; None where all are here.
    """

    total: int
    messages: list[TranscriptEntry]
    scrubbed: float | None = None
