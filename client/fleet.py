"""Many users in one process, without HTTP: tickets in, messages out, cohort after cohort until the run is over."""

import asyncio
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import structlog
from numpy.typing import NDArray

from client.courier import Courier, Limits
from client.crew import LONG_POLL, Crew
from client.departures import departures
from client.gateway import Gateway
from client.masking import Masking
from client.randomizer import Randomizer, World
from client.reporting import Reporting
from client.tally import Tally
from client.terms import Terms, most_colluders
from client.user import User, granted
from common.errors import ProtocolError, Refused, WrongCohort, WrongStage
from common.guarantee import Guarantee
from common.messages.cohort import Cohort
from common.messages.round import Assignment, Round
from common.messages.ticket import Grant, TicketRequest
from common.randomness import UnsafeSeededStream

log = structlog.get_logger("distrust.fleet")

SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.25  # seconds between two requests for tickets that bring none
AHEAD = 2  # blocks whose tickets are taken before their messages are made: more would starve the other fleets


@dataclass(frozen=True, slots=True)
class Habits:
    """How a fleet works.

    block      clients that take tickets, and make their messages, at a time.
    in_flight  clients above which no further cohort is begun; the one that was begun is always filled.
    dropout    share of every cohort that departs; `silent`: without a word.
    """

    block: int = 512
    in_flight: int = 8192
    dropout: float = 0.0
    silent: bool = False
    limits: Limits = field(default_factory=Limits)


class Fleet:
    """Serves one run. Every user has its own keys and noise; what they share is the public part of a cohort."""

    def __init__(self, gateway: Gateway, world: World, terms: Terms, habits: Habits = Habits()) -> None:
        self.tally = Tally()
        self._gateway, self._world, self._terms, self._habits = gateway, world, terms, habits
        self._courier = Courier(gateway, self.tally, habits.limits, habits.silent)
        self._worker = ThreadPoolExecutor(1, "messages")
        self._turns = asyncio.Semaphore(AHEAD)
        self._agreed: dict[str, tuple[Round, Assignment]] = {}
        self._promised: list[Guarantee] = []  # each once, of all cohorts that this process has seen: no earlier ones
        self._crews: dict[str, Crew] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def serve(self) -> str:
        """Play until the run has ended, and say how. Cancel it to stop early; a fleet serves once.

        Raises Refused when a round breaks the users' terms, Unavailable when a service stays away.
        """
        try:
            async with asyncio.TaskGroup() as group:
                state = await self._rounds(group)
                for task in self._tasks.values():
                    task.cancel()
        except* ProtocolError as several:
            raise _first(several) from several
        finally:
            self._worker.shutdown(wait=False, cancel_futures=True)
        return state

    async def farewell(self) -> None:
        """After `serve` was cancelled: announce that everybody leaves, so that S need not wait for them."""
        for crew in self._crews.values():
            with suppress(ProtocolError):
                await self._courier.announce(crew.cohort, crew.users.values())

    async def _rounds(self, group: asyncio.TaskGroup) -> str:
        pause, after = SHORTEST_PAUSE, 0
        while (view := await self._gateway.round(after, LONG_POLL)).state in {"open", "between"}:
            if view.round is not None:
                after = view.round.number
                pause = SHORTEST_PAUSE if await self._play(view.round, group) else pause
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)
        return view.state

    async def _play(self, asked: Round, group: asyncio.TaskGroup) -> bool:
        """Take the round's tickets until there are none; whether there were any."""
        self._agree(asked)
        self._forget_before(asked.number)
        took = False
        while True:
            await self._room()
            await self._turns.acquire()
            grants = await self._take(asked)
            if not grants:
                self._turns.release()
                return took
            took = True
            asked = await self._with_cohorts(asked, grants)
            joining = [joined for grant in grants if (joined := self._join(asked, grant)) is not None]
            group.create_task(self._begin(joining, group))

    async def _with_cohorts(self, asked: Round, grants: list[Grant]) -> Round:
        """The round with the cohorts of these tickets: one that aborted has been replaced since we asked."""
        known = {assignment.cohort.cohort for assignment in asked.assignments}
        if all(grant.cohort in known for grant in grants):
            return asked
        newer = (await self._gateway.round(0, 0.0)).round
        if newer is None or newer.number != asked.number:
            return asked
        kept = [one for one in asked.assignments if one.cohort not in [new.cohort for new in newer.assignments]]
        whole = newer.model_copy(update={"assignments": [*newer.assignments, *kept]})
        self._agree(whole)
        return whole

    def _agree(self, asked: Round) -> None:
        """Raises Refused before anybody takes a ticket, when a cohort breaks the users' terms, or is not as it was."""
        bare = asked.model_copy(update={"assignments": []})
        for assignment in asked.assignments:
            name = assignment.cohort.cohort
            before = self._agreed.get(name)
            if before is None:
                promised = self._terms.check(asked, assignment, self._promised)
                self._promised = [*(one for one in self._promised if one != promised), promised]
                self._agreed[name] = bare, assignment
            elif before != (bare, assignment):
                raise Refused(f"cohort {name} is not what users have agreed to: its round has changed")

    async def _take(self, asked: Round) -> list[Grant]:
        request = TicketRequest(request=secrets.token_hex(16), round=asked.number, want=self._habits.block)
        try:
            return (await self._gateway.tickets(request)).grants
        except (WrongStage, WrongCohort):
            return []  # the round is over

    async def _room(self) -> None:
        """Wait while too many clients are in flight; but the cohort that was begun last may need us to be filled."""
        while True:
            waiting = [len(crew.users) for crew in self._crews.values() if crew.users]
            if sum(waiting) < self._habits.in_flight or len(waiting) < 2:
                return
            await asyncio.sleep(SHORTEST_PAUSE)

    def _join(self, asked: Round, grant: Grant) -> tuple[Crew, list[User]] | None:
        assignment = next((one for one in asked.assignments if one.cohort.cohort == grant.cohort), None)
        if assignment is None:
            log.warning("unknown cohort", cohort=grant.cohort, round=asked.number, tickets=grant.count)
            return None
        if grant.cohort not in self._crews:
            self._crews[grant.cohort] = self._crew(asked, assignment)
        return self._crews[grant.cohort], granted(grant, self._leaves(assignment.cohort))

    def _crew(self, asked: Round, assignment: Assignment) -> Crew:
        randomizer = Randomizer(asked, assignment, self._world)
        masked = assignment.cohort.via == "aggregator"
        script = Masking(randomizer, self._terms.min_survivors) if masked else Reporting(randomizer)
        courier = replace(self._courier, colluders=most_colluders(asked, assignment.cohort))
        return Crew(assignment.cohort, script, courier, self._worker, self._habits.block)

    def _leaves(self, cohort: Cohort) -> NDArray[np.int64]:
        stream = UnsafeSeededStream(self._world.seed, cohort.run, cohort.cohort, "departures")
        return departures(cohort.clients, self._habits.dropout, stream)

    async def _begin(self, joining: list[tuple[Crew, list[User]]], group: asyncio.TaskGroup) -> None:
        """The first messages of a block, and then somebody who follows each of its cohorts."""
        try:
            ready = [(crew, await crew.begin(users)) for crew, users in joining]
        finally:
            self._turns.release()
        for crew, items in ready:
            await crew.open(items)
            name = crew.cohort.cohort
            if crew.users and not crew.asked_once and (name not in self._tasks or self._tasks[name].done()):
                self._tasks[name] = group.create_task(crew.follow())

    def _forget_before(self, number: int) -> None:
        """Crews of earlier rounds that are done; within a round their rewards are still needed."""
        old = [name for name, crew in self._crews.items() if crew.cohort.round < number and not crew.users]
        for name in old:
            del self._crews[name]
            self._tasks.pop(name, None)
        self._agreed = {name: one for name, one in self._agreed.items() if one[0].number >= number}


def _first(several: BaseExceptionGroup[ProtocolError]) -> ProtocolError:
    """The error that ended the fleet; what it took down with itself is of no interest."""
    error: BaseException = several
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ProtocolError)
    return error
