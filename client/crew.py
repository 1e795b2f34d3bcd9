"""The users of one cohort in this process, from their tickets to their last message."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

import structlog

from client.courier import Courier, cut
from client.script import Script
from client.tally import Tally
from client.user import AnyStage, User
from common.crypto.members import bitmap_flags
from common.errors import Aborted, ProtocolError, Refused, Unavailable
from common.messages.cohort import Cohort
from common.messages.stage import StageView
from common.messages.upload import Item

log = structlog.get_logger("distrust.fleet")

LONG_POLL = 25.0


@dataclass
class Crew:
    """Users join in blocks; the first stage is sent for each block at once, later ones when S opens them.

    worker  runs the cryptography, first in, first out, away from the event loop and its long polls.
    block   users whose messages are made at a time.
    """

    cohort: Cohort
    script: Script
    courier: Courier
    worker: Executor
    block: int
    users: dict[int, User] = field(default_factory=dict)
    stage: AnyStage = field(init=False)
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _seen: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.stage = self.script.first

    @property
    def tally(self) -> Tally:
        return self.courier.tally

    @property
    def asked_once(self) -> bool:
        """Whether S wants nothing after the first message, so that there is no stage to follow."""
        return self.script.first == self.script.last

    async def begin(self, users: Sequence[User]) -> list[Item]:
        """The first messages of users that join, without those that leave at once."""
        self.users |= {user.slot: user for user in users}
        self.tally.clients["joined"] += len(users)
        if self.cohort.via == "shuffler":
            users = await self._agreed(users)
        staying = await self._without_leavers(self.script.first, users)
        return await self._work(self.script.first, lambda: self.script.begin(staying))

    async def _agreed(self, users: Sequence[User]) -> Sequence[User]:
        """Users that the shuffler has shown the cohort that they agreed to. Raises Refused, Unavailable.

        Secure aggregation needs none of it: there each client counts the survivors itself, before it unmasks.
        """
        try:
            if self.cohort.channel.kind == "dealt":
                return await self._dealt(users)
            await self._look()
        except (Unavailable, Refused):
            raise
        except ProtocolError as error:
            self._give_up([user.slot for user in users], error)
            return []
        return users

    async def _look(self) -> None:
        """Once for all the blocks of this process: a cohort never changes at S."""
        async with self._looking:
            if not self._seen:
                await self.courier.agree(self.cohort)
                self._seen = True

    async def _dealt(self, users: Sequence[User]) -> Sequence[User]:
        """Users that know what to play, or that leave before they ask; the answer shows the cohort as well."""
        asking = [user for user in users if user.answers("keys")]
        plays = await self.courier.ask(self.cohort, asking)
        self.script.deal(plays)
        untold = [user for user in asking if user.slot not in plays]
        self._drop(user.slot for user in untold)
        await self.courier.announce(self.cohort, untold)
        staying = [user for user in users if user.slot in self.users]
        return [] if await self._forsaken([user.slot for user in staying]) else staying

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
        self.tally.clients["aborted" if isinstance(error, Aborted) else "refused"] += len(slots)
        self._drop(slots)

    async def _answer(self, view: StageView) -> None:
        if view.stage == "aborted" or view.stage == "done":  # noqa: PLR1714 - mypy narrows this form only
            raise Aborted(view.reason or f"the cohort is {view.stage}")
        self.stage = view.stage
        if await self._forsaken(list(self.users)):
            return
        users = await self._without_leavers(self.stage, self._members(view))
        for start in range(0, len(users), self.block):
            await self._answer_block(users[start : start + self.block], view)

    async def _answer_block(self, users: Sequence[User], view: StageView) -> None:
        if view.stage == "masked" and not view.inboxes:
            view = await self.courier.gateway.stage(self.cohort, "shares", [user.slot for user in users], 0.0)
        if view.stage == self.stage:  # else its deadline has passed meanwhile, and the next look tells what to do
            items = await self._work(self.stage, lambda: self.script.answer(users, view))
            refusing = {user.slot for user in users} - {item.slot for item in items}
            self.tally.clients["refused"] += len(refusing)
            self._drop(refusing)
            await self._send(self.stage, items)

    def _wanting(self) -> list[int]:
        """Slots whose inboxes may come along with the next stage; of many users each block asks for its own."""
        return sorted(self.users) if self.stage == "shares" and len(self.users) <= self.block else []

    def _members(self, view: StageView) -> list[User]:
        """Our users that take part in the open stage; the others came too late and are out."""
        flags = bitmap_flags(view.members, self.cohort.clients)
        late = [slot for slot in self.users if not flags[slot]]
        self.tally.clients["late"] += len(late)
        self._drop(late)
        return list(self.users.values())

    async def _send(self, stage: AnyStage, items: Sequence[Item]) -> None:
        for part in cut(items, self.courier.limits):
            if await self._forsaken([item.slot for item in items]):
                return
            self._drop(await self.courier.send(self.cohort, stage, part))
            if stage == self.script.last:
                self._drop(item.slot for item in part)

    async def _forsaken(self, slots: Sequence[int]) -> bool:
        """Whether the cohort is overrun: then these users say nothing more to S but that they leave.

        Fewer honest clients are left to hide among than its noise counts on. What was taken before is at S already.
        """
        if not self.courier.overrun:
            return False
        leaving = [self.users[slot] for slot in slots if slot in self.users]
        told = f"somebody else plays more than {self.courier.colluders} clients of cohort {self.cohort.cohort}"
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
