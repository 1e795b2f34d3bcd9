"""Takes the users of one cohort in this process from their tickets to their last message."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog
from typing_extensions import override

from distrust.client.cohort.protocols import Check, ClientProtocol, ShuffleProtocol
from distrust.client.cohort.stats import FleetStats
from distrust.client.cohort.uploader import LONGEST_POLL, Uploader, cut
from distrust.client.cohort.user import AnyStage, User
from distrust.common.errors import Aborted, BadMessage, ProtocolError, Refused, Unavailable
from distrust.common.protocol.crypto.graph import bitmap_flags
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import StageView
from distrust.common.protocol.messages.upload import Item

log = structlog.get_logger("distrust.fleet")

Result = TypeVar("Result")


class Worker(ThreadPoolExecutor):
    """One thread of a fleet, first in, first out: it makes messages, say. Only the fleet's event loop submits to it.

    So what is `idle` stays so until the loop submits. Short work may then be done on the loop, as the way to another
    thread and back takes longer.
    """

    def __init__(self, name: str = "messages") -> None:
        super().__init__(1, name)
        self._given: list[Future[Any]] = []

    @override
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        self._given.append(future)
        return future

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return what the work returns, done in its turn."""
        return await asyncio.wrap_future(self.submit(work))

    @property
    def idle(self) -> bool:
        """Return whether all that was submitted is done."""
        self._given = [future for future in self._given if not future.done()]  # its results may be secrets
        return not self._given


@dataclass
class CohortSession:
    """The users of one cohort in this process.

    Users join in blocks. A block sends its messages of the first stage at once; later stages are answered when the
    intermediary opens them.

    worker  runs the cryptography away from the event loop and its long polls. Where it is idle, the first message of a
            cohort of one client is made at once.
    block   users whose messages are made at a time.
    """

    cohort: Cohort
    protocol: ClientProtocol
    uploader: Uploader
    worker: Worker
    block: int
    users: dict[int, User] = field(default_factory=dict)
    stage: AnyStage = field(init=False)
    _compared: bool = field(default=False, init=False)
    _taken: set[int] = field(default_factory=set, init=False)  # slots whose report, or whose shares, were taken

    def __post_init__(self) -> None:
        self.stage = self.protocol.first

    @property
    def stats(self) -> FleetStats:
        return self.uploader.stats

    @property
    def single_stage(self) -> bool:
        """Return True when the first message is the last one, so that there is no stage to follow."""
        return self.protocol.first == self.protocol.last

    async def join(self, users: Sequence[User], *, full: bool) -> bool:
        """Add users that hold tickets. Return False when the intermediary does not know or has ended their cohort.

        The intermediary must serve the cohort that the users agreed to. A cohort never changes there, so each process
        compares once, and takes no further tickets meanwhile. Where the channel allows it, less than a block compares
        by its upload instead: the intermediary refuses it by the digest. Raises Refused, Unavailable.

        full  these users and others fill a block of the fleet.
        """
        self.users |= {user.slot: user for user in users}
        self.stats.clients["joined"] += len(users)
        with self._losing(user.slot for user in users):
            # After a full block the fleet takes tickets while it sends. A refusal would interrupt it, and the tickets
            # on their way to it would be lost. For so many users one more call costs little.
            if not self._compared and (self.cohort.channel.compared_first or full):
                await self.uploader.agree(self.cohort)
                self._compared = True
            return True
        return False

    async def begin(self, users: Sequence[User], noted: Awaitable[object]) -> list[Item]:
        """Return the first messages of users that joined, without those that leave at once.

        noted  completes once it is on the disk that these users take part. A request for actions, and a departure, wait
               for it. Messages are made meanwhile, and the caller sends none before.
        """
        if self.cohort.channel.assigns or not all(user.answers(self.protocol.first) for user in users):
            await noted
        if self.cohort.channel.assigns:
            users = await self._assigned(users)
        staying = await self._without_leavers(self.protocol.first, users)
        alone = self.cohort.clients == 1
        return await self._run_in_thread(self.protocol.first, lambda: self.protocol.begin(staying), short=alone)

    async def _assigned(self, users: Sequence[User]) -> Sequence[User]:
        """Return the users that know their action, and those that leave before they request one."""
        requesting = [user for user in users if user.answers("keys")]
        with self._losing(user.slot for user in users):
            positions = await self.uploader.request_actions(self.cohort, requesting)
            self.protocol.assign(positions)
            without = [user for user in requesting if user.slot not in positions]
            self._drop(user.slot for user in without)
            await self.uploader.leave(self.cohort, without)
            staying = [user for user in users if user.slot in self.users]
            return [] if await self._aborts_session([user.slot for user in staying]) else staying
        return []

    async def open(self, items: Sequence[Item]) -> None:
        """Upload first messages. Drop the users that the intermediary refuses, or all if it refuses the upload.

        Raises Refused when the intermediary serves another cohort than the users agreed to, Unavailable.
        """
        with self._losing(item.slot for item in items if item.slot in self.users):
            await self._send(self.protocol.first, items)

    async def follow(self) -> None:
        """Answer stage after stage until no user is left. When the cohort aborts, count it and return.

        Raises Refused when the intermediary refuses messages as those of another cohort, Unavailable.
        """
        with self._losing(self.users):
            while self.users:
                view = await self.uploader.stage(self.cohort, self.stage, self._unanswered_users(), LONGEST_POLL)
                if view.stage == "done" and isinstance(self.protocol, ShuffleProtocol):
                    await self._give_receipts(self.protocol, view)
                    if not self._taken & self.users.keys():
                        return  # the others' reports are on their way, and come too late
                elif view.stage != self.stage:
                    await self._answer(view)

    @contextmanager
    def _losing(self, slots: Iterable[int]) -> Iterator[None]:
        """Drop these users, which are named then, where their cohort has ended or the intermediary refuses them.

        Raises Refused and Unavailable, which end the fleet.
        """
        try:
            yield
        except (Unavailable, Refused):
            raise
        except ProtocolError as error:
            self._give_up(list(slots), error)

    def _give_up(self, slots: Sequence[int], error: ProtocolError) -> None:
        """Drop these users' secrets: their cohort has ended, or the intermediary refuses them."""
        log.info("clients_lost", cohort=self.cohort.cohort, clients=len(slots), code=error.code, why=error.detail)
        aborted = isinstance(error, Aborted)
        self.stats.refuse(len(slots), f"{error.code}: {error.detail}", "aborted" if aborted else "refused")
        self._drop(slots)

    async def _answer(self, view: StageView) -> None:
        if view.stage == "aborted" or view.stage == "done":  # noqa: PLR1714 - mypy narrows this form only
            raise Aborted(view.reason or f"the cohort is {view.stage}")
        self.stage = view.stage
        if await self._aborts_session(list(self.users)):
            return
        users = await self._without_leavers(self.stage, self._members(view))
        if users:
            check = await self._check(view.stage)
            for start in range(0, len(users), self.block):
                await self._answer_block(users[start : start + self.block], view, check)

    async def _give_receipts(self, protocol: ShuffleProtocol, view: StageView) -> None:
        """Tell the server which users' records are in the batch that the shuffler has closed.

        A user whose report was not taken has nothing to say: it may have come too late. Raises Refused where the
        server's list is not the one of which the shuffler has stated the digest. Then no user answers.
        """
        users = [user for slot, user in self.users.items() if slot in self._taken]
        if view.statement is None:
            raise BadMessage(f"cohort {self.cohort.cohort}: the shuffler states no digest of its records")
        count = int(bitmap_flags(view.members, self.cohort.clients).sum())
        listed = await self.uploader.record_list(self.cohort, count, view.statement)
        with self.stats.timing("receipt"):
            found = protocol.found(users, listed)
        await self.uploader.give_receipts(self.cohort, users, found)
        self._drop(user.slot for user in users)

    async def _check(self, stage: str) -> Check:
        """Return the server's publication for this stage. Clients answer only if the aggregator's view fits it."""
        if stage == "shares":
            return await self.uploader.key_hashes(self.cohort)
        return await self.uploader.statement(self.cohort, stage)

    async def _answer_block(self, users: Sequence[User], view: StageView, check: Check) -> None:
        view = await self._with_inboxes(users, view)
        users = [user for user in users if user.slot in self.users]  # others have lost their secrets meanwhile
        if view.stage == self.stage:  # else its deadline has passed meanwhile; `follow` gets the next stage
            items = await self._run_in_thread(self.stage, lambda: self.protocol.answer(users, view, check))
            answering = {item.slot for item in items}
            refusing = [user for user in users if user.slot not in answering]
            for user in refusing:
                self.stats.refuse(1, self.protocol.refusals.get(user.slot, f"no inbox at stage {view.stage}"))
            self._drop(user.slot for user in refusing)
            await self.uploader.leave(self.cohort, refusing)  # the others need not wait for them
            await self._send(self.stage, items)

    def _unanswered_users(self) -> Sequence[User]:
        """Return the users whose inboxes the next stage view shall have. With many users, each block gets its own."""
        wanting = [user for slot, user in self.users.items() if slot in self._taken] if self.stage == "shares" else []
        return wanting if len(wanting) <= self.block else []  # not who came too late for the keys

    async def _with_inboxes(self, users: Sequence[User], view: StageView) -> StageView:
        """Return the view with these users' inboxes. The aggregator sends as many as fit into one answer.

        A user without one, after an answer that has none that was asked for, will refuse.
        """
        if view.stage != "confirm":
            return view
        boxes = {inbox.slot: inbox for inbox in view.inboxes or []}
        while missing := [user for user in users if user.slot not in boxes]:
            newer = await self.uploader.stage(self.cohort, "shares", missing, 0.0)
            if newer.stage != "confirm":
                return newer
            fresh = {inbox.slot: inbox for inbox in newer.inboxes or []}
            if not any(user.slot in fresh for user in missing):
                break
            boxes |= fresh
        return view.model_copy(update={"inboxes": list(boxes.values())})

    def _members(self, view: StageView) -> list[User]:
        """Return our users that take part in the open stage. Drop the others: they came too late.

        At `unmask` no user is late, as the aggregator took its vector. If the aggregator lists it as lost all the same,
        the user reveals nothing.
        """
        flags = bitmap_flags(view.members, self.cohort.clients)
        late = [slot for slot in self.users if not flags[slot]]
        if late and view.stage == "unmask":
            log.error("inputs_dropped", cohort=self.cohort.cohort, slots=late)
            self.stats.refuse(len(late), "the aggregator took the vectors of clients, and calls these clients lost")
        else:
            self.stats.clients["late"] += len(late)
        self._drop(late)
        return list(self.users.values())

    async def _send(self, stage: AnyStage, items: Sequence[Item]) -> None:
        for part in cut(items, self.uploader.limits):
            if await self._aborts_session([item.slot for item in items]):
                return
            self._drop(await self.uploader.send(self.cohort, stage, part))
            if stage in {"report", "shares"}:
                self._taken |= {item.slot for item in part} & self.users.keys()
            if stage == self.protocol.last:
                self._drop(item.slot for item in part)

    async def _aborts_session(self, slots: Sequence[int]) -> bool:
        """Return True after too many ticket conflicts in the cohort; announce then that these users leave.

        More conflicts than colluders means that the cohort has fewer honest clients than its noise counts on. Messages
        that the intermediary took before cannot be taken back.
        """
        if not self.uploader.conflicts_exceeded:
            return False
        leaving = [self.users[slot] for slot in slots if slot in self.users]
        reason = f"another party plays more than {self.uploader.colluders} clients of cohort {self.cohort.cohort}"
        self._give_up([user.slot for user in leaving], Refused(reason))
        await self.uploader.leave(self.cohort, leaving)
        return True

    async def _without_leavers(self, stage: AnyStage, users: Sequence[User]) -> list[User]:
        leaving = [user for user in users if not user.answers(stage)]
        self._drop(user.slot for user in leaving)
        self.stats.clients["departed"] += len(leaving)
        await self.uploader.leave(self.cohort, leaving)
        return [user for user in users if user.slot in self.users]

    async def _run_in_thread(
        self, stage: AnyStage, make: Callable[[], list[Item]], *, short: bool = False
    ) -> list[Item]:
        def timed() -> list[Item]:
            with self.stats.timing(stage):
                return make()

        if short and self.worker.idle:
            return timed()
        return await self.worker.run(timed)

    def _drop(self, slots: Iterable[int]) -> None:
        self._forget([user for slot in slots if (user := self.users.pop(slot, None)) is not None])

    def forget(self) -> None:
        """Drop the secrets of all users, at the end of their fleet. They can still announce that they leave."""
        self._forget(list(self.users.values()))

    def _forget(self, users: Sequence[User]) -> None:
        if len(users) == 1 and self.worker.idle:
            self.protocol.forget(users)
        elif users:
            self.worker.submit(self.protocol.forget, users)  # in its turn: no message is made of zeroed seeds
