"""The two intermediaries, as the server calls them."""

from collections.abc import Sequence
from typing import Protocol

from distrust.common.messages.batch import BatchAnswer
from distrust.common.messages.cohort import Cohort
from distrust.common.messages.status import DeliveryList, StatementList
from distrust.common.wire import Via


class Intermediaries(Protocol):
    """The two intermediaries, as the server calls them. Every call is idempotent. Raises ProtocolError."""

    async def open(self, cohort: Cohort) -> None:
        """Open the cohort at its intermediary. Without any message its first deadline starts again.

        Raises Aborted for a cohort that has ended without a release.
        """
        ...

    async def statements(self, cohort: Cohort, after: int) -> StatementList:
        """Return the aggregator's statements of a masked cohort from position `after` on; may wait for more."""
        ...

    async def delivered(self, run_digest: bytes, via: Via, after: int) -> DeliveryList:
        """Return what an intermediary has released of the run with digest R, from position `after` on."""
        ...

    async def collect(self, cohort: Cohort, *, opening: bool) -> BatchAnswer:
        """Return the batch, or why there is none; may wait before it answers `waiting`. `opening`: open it before."""
        ...

    async def settle(self, run_digest: bytes, via: Via, cohorts: Sequence[str]) -> None:
        """Tell an intermediary that these cohorts of the run with digest R are collected no more."""
        ...

    async def prune(self, run_digest: bytes, via: Via) -> None:
        """Have an intermediary delete all that it has of the run with digest R."""
        ...
