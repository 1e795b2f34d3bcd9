"""The fleet's door to the services, as the fleet sees it: messages out, messages in, no HTTP."""

from collections.abc import Sequence
from typing import Protocol

from distrust.common.messages.cohort import Cohort, KeyHashes, TicketAnswer, TicketRequest
from distrust.common.messages.status import StageView, StatementList
from distrust.common.messages.upload import ActionAnswer, ActionRequest, Departure, Upload, UploadAnswer
from distrust.common.run.config import RunConfig
from distrust.common.run.round import RoundView


class Transport(Protocol):
    """Every call is retried until it is answered; repeating one changes nothing.

    Raises  Unavailable when a service stays away longer than the gateway's patience; otherwise the service's own error.
    """

    async def round(self, after: int, wait: float) -> RoundView:
        """The run's open round; waits `wait` seconds for a later one than `after`, for tickets, or for the end."""
        ...

    async def config(self) -> RunConfig:
        """The run's configuration, as the server shows it to everybody."""
        ...

    async def tickets(self, request: TicketRequest) -> TicketAnswer:
        """Slots for clients that wait; empty while nothing is to be had."""
        ...

    async def terms(self, cohort: Cohort) -> Cohort:
        """The cohort of this name as S knows it: the minimum at which it releases, above all."""
        ...

    async def key_hashes(self, cohort: Cohort) -> KeyHashes:
        """The server's list of what this cohort's clients said of their keys."""
        ...

    async def statements(self, cohort: Cohort, after: int, wait: float) -> StatementList:
        """The server's list of what the aggregator stated of a cohort; waits up to `wait` seconds for more."""
        ...

    async def actions(self, cohort: Cohort, request: ActionRequest) -> ActionAnswer:
        """What clients of a cohort are to play whose actions the shuffler deals."""
        ...

    async def upload(self, cohort: Cohort, upload: Upload) -> UploadAnswer:
        """One stage's messages of many clients, to the S of the cohort."""
        ...

    async def stage(self, cohort: Cohort, after: str, slots: Sequence[int], wait: float) -> StageView:
        """Where the cohort stands; waits up to `wait` seconds while that is `after`. Inboxes come for `slots`."""
        ...

    async def depart(self, cohort: Cohort, departure: Departure) -> UploadAnswer:
        """Tell S that clients are leaving."""
        ...
