"""The users of one cohort in this process, from their tickets to their last message."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

import structlog

from distrust.client.protocols import Check, ClientProtocol
from distrust.client.stats import FleetStats
from distrust.client.uploader import LONG_POLL, Uploader, cut
from distrust.client.user import AnyStage, User
from distrust.common.crypto.graph import bitmap_flags
from distrust.common.errors import Aborted, ProtocolError, Refused, Unavailable
from distrust.common.messages.cohort import Cohort
from distrust.common.messages.stage import StageView
from distrust.common.messages.upload import Item

log = structlog.get_logger("distrust.fleet")


@dataclass
class CohortSession:
    """Users join in blocks; the first stage is sent for each block at once, later ones when S opens them.

    worker  runs the cryptography, first in, first out, away from the event loop and its long polls.
    block   users whose messages are made at a time.
    """

    cohort: Cohort
    script: ClientProtocol
    courier: Uploader
    worker: Executor
    block: int
    users: dict[int, User] = field(default_factory=dict)
    stage: AnyStage = field(init=False)
    _seen: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.stage = self.script.first

    @property
    def tally(self) -> FleetStats:
        return self.courier.tally

    @property
    def asked_once(self) -> bool:
        """Whether S wants nothing after the first message, so that there is no stage to follow."""
        return self.script.first == self.script.last

    async def join(self, users: Sequence[User]) -> bool:
        """Add users that hold tickets; return whether the cohort takes them.

        S must serve the cohort that they agreed to. Each process looks once, as a cohort never changes at S; no further
        tickets are taken meanwhile. Raises Refused, Unavailable.
        """
        self.users |= {user.slot: user for user in users}
        self.tally.clients["joined"] += len(users)
        try:
            if not self._seen:
                await self.courier.agree(self.cohort)
                self._seen = True
        except (Unavailable, Refused):
            raise
        except ProtocolError as error:
            self._give_up([user.slot for user in users], error)
            return False
        return True

    async def begin(self, users: Sequence[User]) -> list[Item]:
        """The first messages of users that joined, without those that leave at once."""
        if self.cohort.channel.kind == "dealt":
            users = await self._told_plays(users)
        staying = await self._without_leavers(self.script.first, users)
        return await self._work(self.script.first, lambda: self.script.begin(staying))

    async def _told_plays(self, users: Sequence[User]) -> Sequence[User]:
        try:
            return await self._dealt(users)
        except (Unavailable, Refused):
            raise
        except ProtocolError as error:
            self._give_up([user.slot for user in users], error)
            return []

    async def _dealt(self, users: Sequence[User]) -> Sequence[User]:
        """Users that know what to play, or that leave before they ask."""
        asking = [user for user in users if user.answers("keys")]
        plays = await self.courier.ask(self.cohort, asking)
        self.script.deal(plays)
        untold = [user for user in asking if user.slot not in plays]
        self._drop(user.slot for user in untold)
        await self.courier.announce(self.cohort, untold)
        staying = [user for user in users if user.slot in self.users]
        return [] if await self._aborts_session([user.slot for user in staying]) else staying

    async def open(self, items: Sequence[Item]) -> None:
        """Upload first messages. Users that S refuses are dropped; all of them, when it wants none any more."""
        try:
            await self._send(self.script.first, items)
        except Unavailable:
            raise
        except ProtocolError as error:
            self._give_up([item.slot for item in items if item.slot in self.users], error)

    async def follow(self) -> None:
        """Answer stage after stage until nothing more is asked. A cohort that comes to nothing ends quietly."""
        try:
            while self.users:
                view = await self.courier.gateway.stage(self.cohort, self.stage, self._wanting(), LONG_POLL)
                if view.stage != self.stage:
                    await self._answer(view)
        except Unavailable:
            raise
        except ProtocolError as error:
            self._give_up(list(self.users), error)

    def _give_up(self, slots: Sequence[int], error: ProtocolError) -> None:
        """Erase what these users hold: their cohort has ended, or S does not want them."""
        log.info("lost", cohort=self.cohort.cohort, clients=len(slots), code=error.code, why=error.detail)
        aborted = isinstance(error, Aborted)
        self.tally.refuse(len(slots), f"{error.code}: {error.detail}", "aborted" if aborted else "refused")
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

    async def _check(self, stage: str) -> Check:
        """Return what the server published for this stage. Clients answer only if the aggregator told them the same."""
        if stage == "shares":
            return await self.courier.key_hashes(self.cohort)
        return await self.courier.statement(self.cohort, stage)

    async def _answer_block(self, users: Sequence[User], view: StageView, check: Check) -> None:
        if view.stage == "confirm" and not view.inboxes:
            view = await self.courier.gateway.stage(self.cohort, "shares", [user.slot for user in users], 0.0)
        if view.stage == self.stage:  # else its deadline has passed meanwhile, and the next look tells what to do
            items = await self._work(self.stage, lambda: self.script.answer(users, view, check))
            answering = {item.slot for item in items}
            refusing = [user for user in users if user.slot not in answering]
            for user in refusing:
                self.tally.refuse(1, self.script.refusals.get(user.slot, f"no inbox at stage {view.stage}"))
            self._drop(user.slot for user in refusing)
            await self.courier.announce(self.cohort, refusing)  # the others need not wait for them
            await self._send(self.stage, items)

    def _wanting(self) -> list[int]:
        """Slots whose inboxes may come along with the next stage; of many users each block asks for its own."""
        return sorted(self.users) if self.stage == "shares" and len(self.users) <= self.block else []

    def _members(self, view: StageView) -> list[User]:
        """Our users that take part in the open stage; the others came too late and are out.

        Users whose vectors were taken cannot be late at `unmask`: the aggregator drops them, and they say nothing more.
        """
        flags = bitmap_flags(view.members, self.cohort.clients)
        late = [slot for slot in self.users if not flags[slot]]
        if late and view.stage == "unmask":
            log.error("inputs_dropped", cohort=self.cohort.cohort, slots=late)
            self.tally.refuse(len(late), "the aggregator took the vectors of clients, and calls these clients lost")
        else:
            self.tally.clients["late"] += len(late)
        self._drop(late)
        return list(self.users.values())

    async def _send(self, stage: AnyStage, items: Sequence[Item]) -> None:
        for part in cut(items, self.courier.limits):
            if await self._aborts_session([item.slot for item in items]):
                return
            self._drop(await self.courier.send(self.cohort, stage, part))
            if stage == self.script.last:
                self._drop(item.slot for item in part)

    async def _aborts_session(self, slots: Sequence[int]) -> bool:
        """Return True after too many ticket conflicts in the cohort; these users then only tell S that they leave.

        More conflicts than colluders: the cohort has fewer honest clients than its noise counts on. S keeps what it
        took before.
        """
        if not self.courier.conflicts_exceeded:
            return False
        leaving = [self.users[slot] for slot in slots if slot in self.users]
        told = f"another party plays more than {self.courier.colluders} clients of cohort {self.cohort.cohort}"
        self._give_up([user.slot for user in leaving], Refused(told))
        await self.courier.announce(self.cohort, leaving)
        return True

    async def _without_leavers(self, stage: AnyStage, users: Sequence[User]) -> list[User]:
        gone = [user for user in users if not user.answers(stage)]
        self._drop(user.slot for user in gone)
        self.tally.clients["departed"] += len(gone)
        await self.courier.announce(self.cohort, gone)
        return [user for user in users if user.slot in self.users]

    async def _work(self, stage: AnyStage, make: Callable[[], list[Item]]) -> list[Item]:
        def timed() -> list[Item]:
            with self.tally.timing(stage):
                return make()

        return await asyncio.get_running_loop().run_in_executor(self.worker, timed)

    def _drop(self, slots: Iterable[int]) -> None:
        gone = [slot for slot in slots if self.users.pop(slot, None) is not None]
        self.script.forget(gone)
