"""Defines what a server shows of whole runs: a view of one, the list of all, and what is left of pruned ones."""

from typing import Annotated, ClassVar

from pydantic import Field
from typing_extensions import override

from distrust.common.dp.accounting.guarantee import ShownGuarantee
from distrust.common.notebook import Card, HtmlTable, NamedRows, Shown
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.progress import (
    ARMS_HEAD,
    ArmView,
    RunLine,
    RunState,
    Seconds,
    Snapshot,
    arm_lines,
    promise_facts,
)
from distrust.common.wire import WIRE, Blob, Identifier, Message, Reason, Version, utc


class RunView(Shown, Message):
    """A run: its configuration, its state, its estimates, and its numbers of clients and cohorts.

    clients   tickets handed out.
    run_id    16 random bytes that the server drew as it made the run.
    state     failed: a round could not be planned, the server's own code raised an exception, no round was closed, or
              the server that started refuses the stored configuration.
    reason    why the run failed or was cancelled; an exception with its type and round.
    frame()   a row an arm, with the fields of `ArmView`.
    """

    TABLES: ClassVar[tuple[str, ...]] = ("arms",)

    version: Version = WIRE
    run: Identifier
    state: RunState
    config: RunConfig
    digest: Blob
    run_id: Blob
    snapshot: Snapshot
    clients: int
    cohorts_open: int
    cohorts_released: int
    cohorts_aborted: int
    reason: Reason | None = None

    @override
    def _table(self, name: str) -> NamedRows:
        return list(ArmView.model_fields), (arm.model_dump() for arm in self.snapshot.arms)

    @override
    def _line(self) -> str:
        seen = self.snapshot
        return f"of {self.run}: {self.state}, round {seen.round}, {seen.pulls:,} of {seen.horizon:,} pulls"

    @override
    def _cards(self) -> list[Card]:
        """Return the run's state, its promise and what that assumes, and its arms where the server knows of any."""
        seen, config = self.snapshot, self.config
        open_ = f"{self.cohorts_open} open, {self.cohorts_released} released, {self.cohorts_aborted} aborted"
        facts = [
            *([("reason", self.reason)] if self.reason else []),
            ("policy", config.policy.name),
            *([("unproven", config.unproven)] if config.unproven is not None else []),
            ("mechanism", f"{config.mechanism.name}, {config.mechanism.calibration} calibration"),
            ("pulls", f"{seen.pulls:,} of {seen.horizon:,}, by {self.clients:,} clients"),
            ("round", str(seen.round)),
            ("cohorts", open_),
            *promise_facts(seen.guarantee),
        ]
        known = any(arm.pulls for arm in seen.arms)
        arms = [HtmlTable(ARMS_HEAD, arm_lines(seen.arms, seen.chosen), words=("fate",))] if known else []
        return [Card(f"run {self.run}: {self.state}", facts, arms)]


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
