"""Defines the calls of a fleet to the services, without HTTP. `client.transport.http` implements them."""

from typing import Protocol

from distrust.common.protocol.messages.cohort import Cohort, KeyHashes, TicketRequest
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
from distrust.common.protocol.run.round import RoundView, TicketAnswer


class Transport(Protocol):
    """Sends messages to the services. Each call is retried until it is answered; repeating one changes nothing.

    Raises  Unavailable when a service stays away for longer than the transport's patience; else the service's error.
    """

    async def round(self, after: int, wait: float) -> RoundView:
        """Return the run's open round. Wait up to `wait` seconds for a later one than `after`, tickets, or the end."""

    async def config(self) -> RunConfig:
        """Return the run's configuration, as the server publishes it."""

    async def tickets(self, request: TicketRequest, wait: float) -> TicketAnswer:
        """Request slots for clients that wait. Return no grants while there are no free slots.

        A request that names no round waits for them up to `wait` seconds, or until the run is over.
        """

    async def terms(self, cohort: Cohort) -> Cohort:
        """Return the cohort of this name as the intermediary knows it, with the minimum at which it releases."""

    async def key_hashes(self, cohort: Cohort) -> KeyHashes:
        """Return the server's list of the hashes of this cohort's keys."""

    async def statements(self, cohort: Cohort, after: int, wait: float) -> StatementList:
        """Return the aggregator's statements that the server published of a cohort, from number `after` on.

        Wait up to `wait` seconds for one.
        """

    async def records(self, cohort: Cohort, wait: float) -> RecordList:
        """Return the server's list of the records that it collected of a cohort. Wait up to `wait` seconds for it."""

    async def give_receipts(self, cohort: Cohort, receipts: Receipts) -> UploadAnswer:
        """Tell the server whether clients' records are in its list. Return its answer."""

    async def actions(self, cohort: Cohort, request: ActionRequest) -> ActionAnswer:
        """Return the positions of clients, in a cohort whose actions the shuffler assigns."""

    async def upload(self, cohort: Cohort, upload: Upload) -> UploadAnswer:
        """Send one stage's messages of many clients to the cohort's intermediary. Return its answer."""

    async def stage(self, cohort: Cohort, after: str, asked: InboxRequest | None, wait: float) -> StageView:
        """Return the cohort's stage. In `confirm` it has the inboxes that are asked for, or the first of them.

        Wait up to `wait` seconds while the stage is `after`.
        """

    async def leave(self, cohort: Cohort, leaving: Leaving) -> UploadAnswer:
        """Announce to the intermediary that clients leave. Return its answer."""
