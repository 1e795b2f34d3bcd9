"""Defines the list of a server's runs: a line a run, and what is left of those that were pruned."""

from typing import Annotated

from pydantic import Field

from distrust.common.dp.accounting.guarantee import ShownGuarantee
from distrust.common.protocol.run.progress import RunLine, RunState, Seconds
from distrust.common.wire import WIRE, Blob, Identifier, Message, Version, utc


class Tombstone(Message):
    """All that is left of a pruned run. Another run may have its name.

    run_digest  R.
    guarantee   the most that a client has spent in it; None where its configuration could not be read any more.
    pruned      seconds since the epoch.
    """

    run: Identifier
    run_id: Blob
    run_digest: Blob
    state: RunState
    guarantee: ShownGuarantee | None
    started: Seconds = None
    ended: Seconds = None
    pruned: float

    def line(self) -> str:
        """Return it as a sentence."""
        ended = "" if self.ended is None else f" at {utc(self.ended)}"
        cost = "" if self.guarantee is None else f", with {self.guarantee.line()}"
        return f"run {self.run} was pruned at {utc(self.pruned)}: it {_ENDS[self.state]}{ended}{cost}"


_ENDS = {"finished": "finished", "failed": "failed", "cancelled": "was cancelled", "running": "was open"}


class RunList(Message):
    """Runs of a server, in the order of their creation.

    pruned  those that were pruned, in this order.
    """

    version: Version = WIRE
    runs: list[RunLine]
    pruned: Annotated[list[Tombstone], Field(exclude_if=lambda pruned: not pruned)] = Field(default_factory=list)
