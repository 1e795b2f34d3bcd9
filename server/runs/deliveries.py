"""Compares what an intermediary has released of a run with what this server knows of it.

A server whose database was restored from an old copy has forgotten cohorts whose batches it has collected. It would
open them again, and release a second estimate of the same clients. The intermediaries list every batch that they have
released (`GET /v1/runs/{R}/delivered`), and each batch says its position in that list. This server knows a batch by the
row of its cohort, which is committed before the cohort's first ticket and closed with its outcome. So a crash between a
delivery and its commit goes on, and a batch without a row stops the run.

`unknown_statements` compares in the same way what the aggregator states of a cohort's stages.
"""

from collections.abc import Sequence

from distrust.common.errors import BadMessage, Conflict, RunFailed
from distrust.common.protocol.crypto.context import cohort_digest
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import STATED, STATEMENT, Statement
from distrust.common.wire import INTERMEDIARIES, Via
from distrust.server.runs.active_run import ActiveRun
from distrust.server.storage.store import Store

_ADVICE = "nothing more of the run is released; docs/reference/operations.md says what a restore may do"
_LOST = "the {via}'s database was lost or is an old copy; " + _ADVICE


class NotComparedError(Exception):
    """A batch stands behind deliveries that this server has not compared yet."""


class Deliveries:
    """Compares the deliveries of all runs. `ActiveRun.delivered` holds those that were compared, in their order."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def uncompared(self, active: ActiveRun) -> set[Via]:
        """Return the intermediaries whose list must be compared before this run hands out tickets."""
        with active.lock:
            if active.state != "running" or len(active.delivered) == len(INTERMEDIARIES):
                return set()
            wanted = {cohort.via for cohort in active.pending()} | self._store.intermediaries(active.config.run)
            return wanted - active.delivered.keys()

    def compare(self, active: ActiveRun, via: Via, after: int, listed: Sequence[bytes]) -> None:
        """Compare the digests that an intermediary lists behind position `after`, to the end of its list.

        Raises RunFailed where it has released a batch that this server does not know, or, after a start, fewer batches
        than this server has settled.
        """
        run = active.config.run
        with active.lock:
            known = active.delivered.get(via)
            if len(set(listed)) < len(listed):
                raise RunFailed(f"the {via} lists a batch of run {run} twice: {_ADVICE}")
            unknown = set(listed) - self._store.known_digests(run, via, listed)
            if unknown:
                raise RunFailed(
                    f"the {via} has released {after + len(listed)} batches of run {run}, and {len(unknown)} of them "
                    f"are of cohorts that this server never began: its database is an old copy; {_ADVICE}"
                )
            if known is None:
                settled = self._store.released_digests(run, via)  # none is settled before this comparison
                if settled - set(listed):
                    raise RunFailed(
                        f"the {via} has released {len(listed)} batches of run {run}, and not all of the {len(settled)} "
                        f"that this server has settled: {_LOST.format(via=via)}"
                    )
                active.delivered[via] = list(listed)
            else:
                both = list(zip(known[after:], listed, strict=False))  # batches came while the list was read
                if any(one != other for one, other in both):
                    raise RunFailed(f"the {via} lists other batches of run {run} than before: {_LOST.format(via=via)}")
                known.extend(listed[len(both) :])

    def confirm(self, active: ActiveRun, cohort: Cohort, answer: BatchAnswer) -> None:
        """Check that a batch stands where it says in the list of deliveries; it may be the one behind the last known.

        Raises NotComparedError where the rest of the list must be compared before; BadMessage for a batch without a
        position; RunFailed where the list has another batch there.
        """
        if answer.batch is None:
            return
        if answer.delivery is None:
            raise BadMessage(f"cohort {cohort.cohort}: the {cohort.via} does not number its delivery")
        digest, position, via = cohort_digest(cohort), answer.delivery, cohort.via
        with active.lock:
            known = active.delivered.get(via)
            if known is None or position > len(known) + 1:
                raise NotComparedError
            if position == len(known) + 1:
                known.append(digest)
            if known[position - 1] != digest:
                raise RunFailed(
                    f"the {via} numbers the batch of cohort {cohort.cohort} as its delivery {position}, which was that "
                    f"of another cohort before: {_LOST.format(via=via)}"
                )


def misnumbered(active: ActiveRun, cohort: Cohort, answer: BatchAnswer) -> str:
    """Return in words that a batch is numbered behind the end of its intermediary's list."""
    listed = len(active.delivered.get(cohort.via, ()))
    number = f"the {cohort.via} numbers the batch of cohort {cohort.cohort} as its delivery {answer.delivery}"
    return f"{number}, and lists {listed}: nothing more of the run is released"


def unknown_statements(cohort: Cohort, known: list[Statement], after: int, stated: list[Statement]) -> list[Statement]:
    """Return the statements from position `after` on that are not known yet. Raises Conflict, BadMessage."""
    whole = known[:after]
    for one in stated:
        place = len(whole)
        what = f"the aggregator stated stage {one.stage} of cohort {cohort.cohort}"
        if len(one.digest) != STATEMENT:
            raise BadMessage(f"{what} with a digest of {len(one.digest)} bytes, not {STATEMENT}")
        if one.stage in {before.stage for before in whole}:
            raise Conflict(f"{what} twice")
        if one.stage != STATED[place]:
            raise BadMessage(f"{what} out of order: stage {STATED[place]} comes first")
        if place < len(known) and one != known[place]:
            raise Conflict(f"{what} twice, and differed")
        whole.append(one)
    return whole[len(known) :]
