"""Runs many users in one process, without HTTP.

From tickets to messages, cohort after cohort, until the run is over.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from distrust.client.checks.agreement import check_config, check_own_world
from distrust.client.checks.requirements import PrivacyRequirements, most_colluders
from distrust.client.cohort.departures import departures
from distrust.client.cohort.protocols import SecAggProtocol, ShuffleProtocol
from distrust.client.cohort.randomizer import CohortRandomizer, World
from distrust.client.cohort.secagg import Secrets
from distrust.client.cohort.session import CohortSession, Worker
from distrust.client.cohort.stats import FleetStats
from distrust.client.cohort.uploader import LONGEST_POLL, Limits, Uploader
from distrust.client.cohort.user import Own, User, granted, own_hash
from distrust.client.fleet.memory import HeldSlots, Memory
from distrust.client.transport.base import Transport
from distrust.common.dp.accounting.ledger import Entry
from distrust.common.dp.mechanisms import AnyMechanism
from distrust.common.errors import (
    BadMessage,
    BudgetExceeded,
    NotAdmitted,
    ProtocolError,
    Refused,
    Unauthorized,
    WrongCohort,
    WrongStage,
)
from distrust.common.protocol.crypto.context import run_digest
from distrust.common.protocol.crypto.receipts import RECEIPT_SECRET
from distrust.common.protocol.messages.cohort import Cohort, Grant, TicketRequest
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.round import Assignment, Round, RoundView, TicketAnswer
from distrust.common.randomness import UnsafeSeededStream

log = structlog.get_logger("distrust.fleet")

SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.25  # seconds between two requests for tickets that bring none
RUNNING = frozenset({"open", "between"})  # states of a run that may still need users
AHEAD = 2  # blocks whose tickets are taken before their messages are made: more would starve the other fleets


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """Settings of one fleet process.

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
    """Serves one run. Every user has its own keys and noise; users share only the public part of a cohort.

    memory  what its users have taken part in before. Without one, this fleet notes it for itself, and a fleet that
            starts after it knows nothing of it.
    """

    def __init__(
        self,
        transport: Transport,
        world: World,
        requirements: PrivacyRequirements,
        options: FleetOptions = FleetOptions(),
        memory: Memory | None = None,
    ) -> None:
        self.stats = FleetStats()
        self._transport, self._world, self._requirements, self._options = transport, world, requirements, options
        self._uploader = Uploader(transport, self.stats, options.limits, options.silent)
        self._worker = Worker()
        self._memory, self._notes = memory or Memory(), Worker("memory")  # apart: it waits for the disk
        self._turns = asyncio.Semaphore(AHEAD)
        self._config: RunConfig | None = None
        self._run_id = self._run = b""  # the id and R of the run that this fleet serves, once they are known
        self._own: list[Own] = []  # made, and not yet in any cohort
        self._makes: Callable[[], Own] | None = None  # requests for tickets carry the hashes of what it makes
        self._holding: list[tuple[Assignment, list[User]]] = []  # with tickets of a round that is not agreed to
        self._agreed: dict[str, tuple[Round, Assignment]] = {}
        self._costs: list[Entry] = []  # of all cohorts that users have been in or agreed to, each cost once
        self._terms: list[tuple[AnyMechanism, int]] = []  # the last round's: mechanism and clients of each cohort
        self._sessions: dict[str, CohortSession] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def serve(self) -> str:
        """Play until the run has ended. Return its last state. Cancel the task to stop early; a fleet serves once.

        Raises Refused or BudgetExceeded when a round breaks the users' requirements, Unavailable when a service stays
        away; NotAdmitted or Unauthorized, after the cohorts in which it has users, when the server gives it no more
        tickets. A refusal of its users is counted for the users that hold tickets, or for one user when none does.
        """
        try:
            return await self._served()
        except (Refused, BudgetExceeded) as error:
            holding = sum(len(users) for _, users in self._with_tickets())
            self.stats.refuse(max(1, holding), f"{error.code}: {error.detail}")
            await self.leave()  # other fleets' clients need not wait for these
            raise
        except BaseExceptionGroup:  # a fault of this code: the other fleets' clients need not wait for it either
            await self.leave()
            raise
        finally:
            self._forget_secrets()
            self._worker.shutdown(wait=False)  # it forgets first; messages in its queue were cancelled with their tasks
            self._notes.shutdown(wait=False, cancel_futures=True)

    async def _served(self) -> str:
        state, refusal = "open", None
        try:
            async with asyncio.TaskGroup() as group:
                try:
                    state = await self._rounds(group)
                except (NotAdmitted, Unauthorized) as error:  # users with tickets play their cohorts to the end
                    refusal = error
                else:
                    for task in self._tasks.values():
                        task.cancel()
        except* ProtocolError as several:
            raise _first(several) from several
        if refusal is not None:
            raise refusal
        return state

    async def leave(self) -> None:
        """Announce that all clients leave, after `serve` was cancelled or refused. No intermediary waits for them."""
        for cohort, users in self._with_tickets():
            with suppress(ProtocolError):
                await self._uploader.leave(cohort, users)

    def _forget_secrets(self) -> None:
        """Let the worker wipe all keys and seeds that are left, once what is in work is made."""
        for session in self._sessions.values():
            session.forget()
        self._worker.submit(self._wipe, self._own)  # which grows while the worker makes more
        self._worker.submit(self._wipe, [user.keys for _, users in self._holding for user in users])

    @staticmethod
    def _wipe(unused: Iterable[Own | None]) -> None:
        for own in unused:
            if isinstance(own, Secrets):
                own.wipe()

    def _with_tickets(self) -> list[tuple[Cohort, list[User]]]:
        """Return the users that hold tickets, by cohort: those that play, and those that have not agreed yet."""
        playing = [(session.cohort, list(session.users.values())) for session in self._sessions.values()]
        return playing + [(assignment.cohort, users) for assignment, users in self._holding]

    async def _rounds(self, group: asyncio.TaskGroup) -> str:
        view, pause = await self._first_view(), SHORTEST_PAUSE
        while view.state in RUNNING:
            answer = await self._take(0)
            if answer.view is None:
                raise BadMessage("view: the server's answer to a request that names no round shows none")
            view = answer.view
            if view.round is not None and await self._begin_blocks(view, answer.grants, group):
                pause = SHORTEST_PAUSE  # the next request waits for another round, or for free slots
            elif view.state in RUNNING:
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE, 2 * pause)
        return view.state

    async def _first_view(self) -> RoundView:
        """Return the run's open round, or its end, and agree to it: it tells what a request for tickets must carry."""
        while (view := await self._transport.round(0, LONGEST_POLL)).round is None and view.state in RUNNING:  # noqa: ASYNC110  the server decides
            await asyncio.sleep(LONGEST_PAUSE)
        if view.round is not None:
            await self._configure(view)
            await self._agree(view.round)
            mechanism = view.round.mechanism  # of the same class in all rounds; their cohorts may be larger
            if mechanism.via == "aggregator":
                self._makes = Secrets
            elif mechanism.receipted_in_crowds:
                self._makes = partial(secrets.token_bytes, RECEIPT_SECRET)
        return view

    async def _begin_blocks(self, view: RoundView, grants: list[Grant], group: asyncio.TaskGroup) -> bool:
        """Begin the users of these tickets, and of further ones of the round until no slot is free.

        Return whether there were any. The server grants whatever is free, so a grant of less than the block is the last
        one for now.
        """
        assert view.round is not None
        round_, agreed = view.round, None
        while grants or agreed is None:
            round_ = await self._with_cohorts(round_, grants)
            self._holding = self._holders(round_, grants)
            if round_ is not agreed:
                await self._configure(view)
                await self._agree(round_)
                agreed = round_
            if not grants:
                return False
            taken, held, full = [], [], sum(grant.count for grant in grants) >= self._options.block
            while self._holding:
                assignment, users = self._holding.pop(0)
                session = self._session(round_, assignment)
                if await session.join(users, full=full):
                    taken.append((session, users))
                    slots = [user.slot for user in users]
                    held.append(HeldSlots(assignment.cohort, round_.mechanism_of(assignment), slots))
            group.create_task(self._begin(taken, held, group))
            await asyncio.sleep(0)  # the block's messages go out before the next tickets are requested
            if not full:
                break
            grants = (await self._take(round_.number)).grants
        return True

    async def _configure(self, view: RoundView) -> None:
        """Get the run's configuration, once. Raises Refused when the server names another one, or another run."""
        if self._config is None:
            self._config, self._run_id = await self._transport.config(), view.run_id
            self._run = run_digest(self._config.digest(), view.run_id)
            self._costs = await self._worker.run(self._spent)
        check_config(self._config, view)
        if view.run_id != self._run_id:
            raise Refused(f"run_id: run {view.run} is another one than this fleet began to serve")
        check_own_world(self._config, self._world.environment)

    async def _with_cohorts(self, round_: Round, grants: list[Grant]) -> Round:
        """Return the round with the cohorts of these tickets. The server may have replaced a cohort that aborted."""
        known = {assignment.cohort.cohort for assignment in round_.assignments}
        if all(grant.cohort in known for grant in grants):
            return round_
        newer = (await self._transport.round(0, 0.0)).round
        if newer is None or newer.number != round_.number:
            return round_
        replaced = {assignment.cohort.cohort for assignment in newer.assignments}
        kept = [assignment for assignment in round_.assignments if assignment.cohort.cohort not in replaced]
        return newer.model_copy(update={"assignments": [*newer.assignments, *kept]})

    def _holders(self, round_: Round, grants: list[Grant]) -> list[tuple[Assignment, list[User]]]:
        """Return the users that hold these tickets, by cohort, with the keys of their slots."""
        assignments = {assignment.cohort.cohort: assignment for assignment in round_.assignments}
        holders = []
        for grant in grants:
            own = self._own[: grant.count]
            del self._own[: grant.count]
            assignment = assignments.get(grant.cohort)
            if assignment is None:
                log.warning("cohort_unknown", cohort=grant.cohort, round=round_.number, tickets=grant.count)
                self._worker.submit(self._wipe, own)
            else:
                cohort = assignment.cohort
                stream = UnsafeSeededStream(self._world.seed, cohort.run, cohort.cohort, "departures")
                users = granted(grant, departures(cohort.clients, self._options.dropout, stream), own)
                holders.append((assignment, users))
        return holders

    async def _agree(self, round_: Round) -> None:
        """Check a round before its users send anything.

        Raises Refused when a cohort breaks the users' requirements, or is not the one that they agreed to or took part
        in before, and when they have been in a later round.
        """
        self._forget_before(round_.number)
        before, self._terms = self._terms, [(round_.mechanism_of(a), a.cohort.clients) for a in round_.assignments]
        if self._terms == before and self._alone(a.cohort for a in round_.assignments):
            self._check(round_)  # its plan is cached
        else:
            await self._worker.run(lambda: self._check(round_))  # planning takes a while

    def _alone(self, cohorts: Iterable[Cohort]) -> bool:
        """Return whether work for these cohorts is done on the loop: they have one client, and no other one waits."""
        threads = self._worker.idle and self._notes.idle
        waiting = sum(len(session.users) for session in self._sessions.values())
        return threads and waiting < 2 and all(cohort.clients == 1 for cohort in cohorts)

    def _spent(self) -> list[Entry]:
        """Return the costs of the run's cohorts that users have been in, by fleets before this one.

        Raises Refused or BudgetExceeded when they are more than the users allow by now.
        """
        assert self._config is not None
        costs: list[Entry] = []
        if self._requirements.contributions > 1:  # else no user comes again
            for mechanism in self._memory.mechanisms(self._run):
                costs.append(self._requirements.cost(mechanism, costs, self._config.budget))
        return costs

    def _check(self, round_: Round) -> None:
        self._memory.check(self._run, round_)
        bare = round_.model_copy(update={"assignments": []})
        assert self._config is not None
        for assignment in round_.assignments:
            name = assignment.cohort.cohort
            before = self._agreed.get(name)
            if before is None:
                cost = self._requirements.check(self._config, self._run_id, round_, assignment, self._costs)
                self._costs = [*(entry for entry in self._costs if entry != cost), cost]
                self._agreed[name] = bare, assignment
            elif before != (bare, assignment):
                raise Refused(f"cohort {name} is not what users have agreed to: its round has changed")

    async def _take(self, number: int) -> TicketAnswer:
        """Request a block of tickets of a round; 0: wait for those of whichever is open.

        Where the mechanism needs keys, or secrets of receipts, the first of `_own` are then those of the slots. A block
        with tickets holds a turn, until its messages are made.
        """
        await self._wait_for_slots()
        await self._turns.acquire()
        want, hashes = self._options.block, b""
        make = self._makes
        if make is not None:
            missing = want - len(self._own)
            await self._worker.run(lambda: self._own.extend(make() for _ in range(missing)))
            hashes = b"".join(map(own_hash, self._own[:want]))
        request = TicketRequest(request=secrets.token_hex(16), round=number, want=want, keys=hashes)
        if number:
            answer = TicketAnswer(grants=[])
            with suppress(WrongStage, WrongCohort):  # the round is over
                answer = await self._transport.tickets(request, 0.0)
        else:
            answer = await self._transport.tickets(request, LONGEST_POLL)
        if not answer.grants:
            self._turns.release()
        return answer

    async def _wait_for_slots(self) -> None:
        """Wait while too many clients are in flight. Never wait with one cohort only: it may need us to be filled."""
        while True:
            waiting = [len(session.users) for session in self._sessions.values() if session.users]
            if sum(waiting) < self._options.in_flight or len(waiting) < 2:
                return
            await asyncio.sleep(SHORTEST_PAUSE)

    def _session(self, round_: Round, assignment: Assignment) -> CohortSession:
        """Return the session of a cohort, a new one for its first users."""
        name = assignment.cohort.cohort
        if name not in self._sessions:
            randomizer = CohortRandomizer(round_, assignment, self._world)
            min_survivors = self._requirements.min_survivors or 1  # the floor was compared with a default
            masked = assignment.cohort.via == "aggregator"
            protocol = SecAggProtocol(randomizer, min_survivors) if masked else ShuffleProtocol(randomizer)
            uploader = replace(self._uploader, colluders=most_colluders(round_, assignment.cohort))
            session = CohortSession(assignment.cohort, protocol, uploader, self._worker, self._options.block)
            self._sessions[name] = session
        return self._sessions[name]

    async def _begin(
        self, joining: list[tuple[CohortSession, list[User]]], held: list[HeldSlots], group: asyncio.TaskGroup
    ) -> None:
        """Send the first messages of a block, and start a task that follows each of its cohorts.

        Raises Refused when users would take part a second time; Unavailable, BadParameter when it cannot be noted that
        they take part.
        """
        try:
            if self._alone(slots.cohort for slots in held):
                self._memory.hold(held)
                noted = asyncio.get_running_loop().create_future()
                noted.set_result(None)
            else:
                noted = asyncio.wrap_future(self._notes.submit(self._memory.hold, held))
                noted.add_done_callback(lambda done: done.cancelled() or done.exception())  # another's may be first
            ready = [(session, await session.begin(users, noted)) for session, users in joining]
            await noted
        finally:
            self._turns.release()
        for session, items in ready:
            await session.open(items)
            name = session.cohort.cohort
            if session.users and not session.single_stage and (name not in self._tasks or self._tasks[name].done()):
                self._tasks[name] = group.create_task(session.follow())

    def _forget_before(self, number: int) -> None:
        """Forget sessions of earlier rounds that are done. Within a round their rewards are still needed."""
        old = [name for name, session in self._sessions.items() if session.cohort.round < number and not session.users]
        for name in old:
            del self._sessions[name]
            self._tasks.pop(name, None)
        self._agreed = {name: agreed for name, agreed in self._agreed.items() if agreed[0].number >= number}


def _first(several: BaseExceptionGroup[ProtocolError]) -> ProtocolError:
    """Return the error that ended the fleet. The others are tasks that ended because of it."""
    error: BaseException = several
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ProtocolError)
    return error
