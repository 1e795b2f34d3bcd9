"""The server's routes: runs for the operator, rounds and tickets for fleets, progress for everybody."""

import time
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from distrust.common.errors import (
    BadMessage,
    BadParameter,
    BudgetExceeded,
    Conflict,
    Unauthorized,
    Unavailable,
    WrongCohort,
    WrongStage,
)
from distrust.common.messages.cohort import KeyHashes, TicketAnswer, TicketRequest
from distrust.common.messages.status import StatementList, Transcript
from distrust.common.run.config import RunConfig
from distrust.common.run.progress import LedgerView, RoundList, RoundReport, RunList, RunView
from distrust.common.run.round import RoundView
from distrust.common.web.app import OperatorOnly
from distrust.common.web.body import OPERATORS_VALUES, JsonBody, MessageRoute
from distrust.common.web.problems import RETRY_SECONDS, problems
from distrust.common.web.waiting import LONGEST_WAIT, ChangeNotifier, Waiting, waiting
from distrust.server.runs.coordinator import RunCoordinator
from distrust.server.service import Service

HEARTBEAT_SECONDS = 15.0


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _conductor(request: Request) -> RunCoordinator:
    conductor: RunCoordinator = request.app.state.conductor
    return conductor


ServiceDep = Annotated[Service, Depends(_service)]
ConductorDep = Annotated[RunCoordinator, Depends(_conductor)]
NotifierDep = Annotated[Waiting, Depends(waiting)]
Wait = Annotated[float, Query(ge=0, le=LONGEST_WAIT, description="seconds to wait for an answer that says more")]
After = Annotated[int, Query(ge=0, le=2**53, description="position to start behind")]
Limit = Annotated[int, Query(ge=1, le=1000)]

runs = APIRouter(prefix="/v1", tags=["runs"], route_class=MessageRoute)
rounds = APIRouter(prefix="/v1", tags=["rounds"], route_class=MessageRoute)
operations = APIRouter(prefix="/v1", tags=["watching"], route_class=MessageRoute)


@runs.post(
    "/runs",
    dependencies=[OperatorOnly],
    responses={201: {"model": RunView}, **problems(Unauthorized, Conflict, BudgetExceeded, BadParameter, BadMessage)},
)
def create(
    config: Annotated[RunConfig, JsonBody.of(RunConfig, OPERATORS_VALUES)], service: ServiceDep, response: Response
) -> RunView:
    """Start a run: 201 for a new one, 200 for the same configuration again, 409 for another one of the same name."""
    view, new = service.create(config)
    response.status_code = 201 if new else 200
    return view


@runs.get("/runs")
def list_runs(service: ServiceDep) -> RunList:
    """All runs, oldest first."""
    return service.runs()


@runs.get("/runs/{run}", responses=problems(WrongCohort))
def view(run: str, service: ServiceDep) -> RunView:
    """Where a run stands."""
    return service.view(run)


@runs.get("/runs/{run}/config", responses=problems(WrongCohort))
def config(run: str, service: ServiceDep) -> RunConfig:
    """Show a run's configuration. It never changes; clients check its digest, and compute rounds again from it."""
    return service.live(run).config


@runs.delete("/runs/{run}", dependencies=[OperatorOnly], responses=problems(Unauthorized, WrongCohort))
async def cancel(run: str, service: ServiceDep, conductor: ConductorDep) -> RunView:
    """Stop a run for good. Clients that hold its tickets just stop; nothing more of it is released."""
    found = await run_in_threadpool(service.cancel, run, "cancelled by the operator")
    conductor.forget(run)
    return found


@rounds.get("/runs/{run}/round", responses=problems(WrongCohort))
async def open_round(
    run: str, service: ServiceDep, notifier: NotifierDep, wait: Wait = 0, after: After = 0
) -> RoundView:
    """The open round. With `wait` and `after`: once a later round is open, tickets are to be had, or it is over."""
    newest = lambda: service.newest_round(run)  # noqa: E731
    await notifier.until(run, newest, lambda number: number > after, wait, question="round")
    return await run_in_threadpool(service.round_view, run)


@rounds.post("/runs/{run}/tickets", responses=problems(WrongCohort, WrongStage, Conflict, BadMessage, Unavailable))
async def tickets(
    run: str,
    body: Annotated[TicketRequest, JsonBody.of(TicketRequest)],
    conductor: ConductorDep,
    response: Response,
) -> TicketAnswer:
    """Slots for clients that wait: the same request always gets the same ones. None yet: `Retry-After`."""
    answer = await conductor.tickets(run, body)
    if not answer.grants:
        response.headers["Retry-After"] = str(RETRY_SECONDS)
    return answer


@rounds.get("/runs/{run}/cohorts/{cohort}/keys", responses=problems(WrongCohort, WrongStage))
def key_hashes(run: str, cohort: str, service: ServiceDep) -> KeyHashes:
    """List the hashes of the clients' keys, by slot: clients hold the aggregator's roster against them."""
    return service.key_hashes(run, cohort)


@rounds.get("/runs/{run}/cohorts/{cohort}/statements", responses=problems(WrongCohort, WrongStage))
async def statements(
    run: str, cohort: str, service: ServiceDep, notifier: NotifierDep, *, wait: Wait = 0, after: After = 0
) -> StatementList:
    """List what the aggregator stated of a cohort; with `wait`, as soon as there is more, or the cohort is over."""
    look = lambda: service.statements(run, cohort)  # noqa: E731
    more = lambda found: len(found.statements) > after or found.over  # noqa: E731
    found: StatementList = await notifier.until(run, look, more, wait, question=("statements", cohort))
    return found.model_copy(update={"statements": found.statements[after:]})


@rounds.get("/runs/{run}/rounds", responses=problems(WrongCohort))
def list_rounds(run: str, service: ServiceDep, after: After = 0, limit: Limit = 50) -> RoundList:
    """Rounds with their cohorts, page by page; `after` is a round's number."""
    return service.rounds(run, after, limit)


@rounds.get("/runs/{run}/rounds/{number}", responses=problems(WrongCohort))
def one_round(run: str, number: int, service: ServiceDep) -> RoundReport:
    """One round with its cohorts."""
    return service.round_report(run, number)


@operations.get(
    "/runs/{run}/cohorts/{cohort}/messages",
    dependencies=[OperatorOnly],
    responses=problems(Unauthorized, WrongCohort, WrongStage),
)
def messages(run: str, cohort: str, service: ServiceDep, after: After = 0, limit: Limit = 100) -> Transcript:
    """What this server saw of a cohort, message by message."""
    return service.transcript(run, cohort, after, limit)


@operations.get("/runs/{run}/ledger", responses=problems(WrongCohort))
def ledger(run: str, service: ServiceDep) -> LedgerView:
    """What each round cost its clients, and what that comes to."""
    return service.ledger(run)


@operations.get("/runs/{run}/events", responses=problems(WrongCohort), response_class=StreamingResponse)
async def events(
    run: str,
    service: ServiceDep,
    notifier: NotifierDep,
    last_event_id: Annotated[str | None, Header(description="number of the last event that was seen")] = None,
) -> StreamingResponse:
    """Server-sent events until the run is over; `Last-Event-ID` goes on behind an event."""
    await run_in_threadpool(service.live, run)  # unknown runs are refused before the stream begins
    after = int(last_event_id[:15]) if last_event_id and last_event_id.isascii() and last_event_id.isdecimal() else 0
    return StreamingResponse(_stream(service, notifier.changes, run, after), media_type="text/event-stream")


async def _stream(service: Service, notifier: ChangeNotifier, run: str, after: int) -> AsyncIterator[str]:
    """Events behind number `after`. Listening ends by itself when the caller hangs up: the framework cancels it."""
    newest = lambda: service.newest_event(run)  # noqa: E731
    while not notifier.closed:
        known, began = after, time.monotonic()
        later = lambda number: number > known  # noqa: B023, E731  used within this turn of the loop
        await notifier.until(run, newest, later, HEARTBEAT_SECONDS, question="events")
        found, over = await run_in_threadpool(service.events, run, after)
        for event in found:
            after = event.number
            yield f"id: {event.number}\nevent: {event.kind}\ndata: {event.model_dump_json(exclude_none=True)}\n\n"
        if over:
            return
        if not found and time.monotonic() - began < HEARTBEAT_SECONDS / 2:
            return  # too many requests wait: this listener comes back with its `Last-Event-ID`
        if not found:
            yield ": still here\n\n"
