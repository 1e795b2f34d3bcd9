"""Serves the server over HTTP: its settings, its routes, and the tasks that run beside them."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from distrust.common.errors import (
    BadMessage,
    BadParameter,
    BudgetExceeded,
    Conflict,
    NotAdmitted,
    Unauthorized,
    Unavailable,
    WrongCohort,
    WrongStage,
)
from distrust.common.extensions import allow
from distrust.common.protocol.messages.admission import request_text
from distrust.common.protocol.messages.cohort import KeyHashes, TicketRequest
from distrust.common.protocol.messages.status import RecordList, StatementList, Transcript
from distrust.common.protocol.messages.upload import Receipts, UploadAnswer
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.listing import RunList, RunView, Tombstone
from distrust.common.protocol.run.progress import IntervalList, LedgerView, RegretCurve, RoundList, RoundReport
from distrust.common.protocol.run.round import RoundView, TicketAnswer
from distrust.common.protocol.web.app import Each, OperatorOnly, Participation, Readers, ReadersMessageRoute, make_app
from distrust.common.protocol.web.bodies import OPERATORS_VALUES, JsonBody, MessageRoute, release_body
from distrust.common.protocol.web.problems import RETRY_SECONDS, mark_fault, problems
from distrust.common.protocol.web.waiting import ChangeNotifier, NotifierDep, Wait
from distrust.server.dashboard import answer_with_pages, static_routes
from distrust.server.dashboard.calculator import calculator_pages
from distrust.server.dashboard.parties import cohort_pages
from distrust.server.dashboard.routes import pages
from distrust.server.intermediary import HttpIntermediaries
from distrust.server.reading.reader import Reader
from distrust.server.runs.admission import Admission
from distrust.server.runs.coordinator import RunCoordinator
from distrust.server.runs.intermediaries import Housekeeper, Intermediaries
from distrust.server.runs.service import Service
from distrust.server.runs.ticket_issuer import MOST_GRANTED
from distrust.server.settings import ServerSettings
from distrust.server.storage.keys import KeyFolder
from distrust.server.storage.store import Store, open_database

HEARTBEAT_SECONDS = 15.0  # without an event; then a comment keeps the stream's connection open


def _held(name: str) -> Any:
    """Return a dependency: what the app's state holds under this name."""

    async def held(request: Request) -> Any:
        return getattr(request.app.state, name)

    return Depends(held)


ReaderDep = Annotated[Reader, _held("reader")]
ServiceDep = Annotated[Service, _held("service")]
CoordinatorDep = Annotated[RunCoordinator, _held("coordinator")]
HousekeeperDep = Annotated[Housekeeper, _held("housekeeper")]
ConfigBody = Annotated[RunConfig, JsonBody.of(RunConfig, OPERATORS_VALUES)]
After = Annotated[int, Query(ge=0, le=2**53, description="position to start behind")]
Limit = Annotated[int, Query(ge=1, le=1000)]

run_routes = APIRouter(prefix="/v1", tags=["runs"], route_class=MessageRoute)
round_routes = APIRouter(prefix="/v1", tags=["rounds"], route_class=MessageRoute)
list_routes = APIRouter(prefix="/v1", route_class=ReadersMessageRoute)
watch_routes = APIRouter(prefix="/v1", tags=["watching"], route_class=MessageRoute)


@run_routes.post(
    "/runs",
    dependencies=[OperatorOnly],
    responses={201: {"model": RunView}, **problems(Unauthorized, Conflict, BudgetExceeded, BadParameter, BadMessage)},
)
def create_run(config: ConfigBody, service: ServiceDep, reader: ReaderDep, response: Response) -> RunView:
    """Start a run. Return 201 for a new one, 200 for the same configuration again, 409 for another of the same name."""
    response.status_code = 201 if service.create(config) else 200
    return reader.view(config.run)


@run_routes.get("/runs")
def list_runs(reader: ReaderDep) -> RunList:
    """Return all runs, oldest first."""
    return reader.runs()


@list_routes.get("/runs/{run}", tags=["runs"], responses=problems(WrongCohort))
def show_run(run: str, reader: ReaderDep) -> RunView:
    """Return a run's state and its estimates."""
    return reader.view(run)


@run_routes.get("/runs/{run}/config", responses=problems(WrongCohort))
def show_config(run: str, reader: ReaderDep) -> RunConfig:
    """Return a run's configuration. It never changes; clients check its digest and recompute rounds from it."""
    return reader.config(run)


@run_routes.delete("/runs/{run}", dependencies=[OperatorOnly], responses=problems(Unauthorized, WrongCohort))
async def cancel_run(run: str, service: ServiceDep, reader: ReaderDep, coordinator: CoordinatorDep) -> RunView:
    """Stop a run for good and return it: clients that hold its tickets stop, and no more is released."""
    await run_in_threadpool(service.cancel, run, "cancelled by the operator")
    coordinator.forget(run)
    return await run_in_threadpool(reader.view, run)


@run_routes.delete(
    "/runs/{run}/data",
    dependencies=[OperatorOnly],
    responses=problems(Unauthorized, WrongCohort, Conflict, Unavailable),
)
async def prune_run(
    run: str, service: ServiceDep, coordinator: CoordinatorDep, housekeeper: HousekeeperDep
) -> Tombstone:
    """Delete what a finished run left at all three services, and return its tombstone. Idempotent.

    After 503 the same call goes on. A run that is running is refused: cancel it first.
    """
    await run_in_threadpool(service.prunable, run)  # raises for one that stays
    if run not in {active.config.run for active in service.running()}:  # else its name is another run's by now
        coordinator.forget(run)
    return await housekeeper.prune(run)


@round_routes.get("/runs/{run}/round", responses=problems(WrongCohort))
async def open_round(run: str, reader: ReaderDep, notifier: NotifierDep, wait: Wait = 0, after: After = 0) -> RoundView:
    """Return the open round. With `wait` and `after`, wait for a later round, free tickets, or the run's end."""
    look, known = lambda: reader.standing(run), lambda: reader.cached_standing(run)
    later = lambda standing: standing[0] > after  # noqa: E731
    standing: tuple[float, RoundView] = await notifier.until(run, look, later, wait, question="round", known=known)
    return standing[1]


@round_routes.post(
    "/runs/{run}/tickets",
    dependencies=[Participation],
    responses=problems(Unauthorized, NotAdmitted, WrongCohort, WrongStage, Conflict, BadMessage, Unavailable),
    response_model=TicketAnswer,
)
async def request_tickets(
    run: str,
    body: Annotated[TicketRequest, JsonBody.of(TicketRequest)],
    *,
    request: Request,
    service: ServiceDep,
    reader: ReaderDep,
    coordinator: CoordinatorDep,
    notifier: NotifierDep,
    wait: Wait = 0,
) -> Response:
    """Issue tickets and return them. With `wait` and round 0, wait for free slots, or for the run's end.

    Idempotent: a repeated request returns the same slots, until the run is over. None free: `Retry-After`. Needs a
    participation token, the operator's token, or an enrolled device's signature: `Authorization: Device KEY:SIGNATURE`.
    """
    admission: Admission = request.app.state.admission
    text = partial(request_text, service.active_run(run).run_digest, body)
    caller = admission.caller(request.headers.get("authorization", ""), text)
    answer = await coordinator.tickets(run, body, caller)  # a repeated request may have got some before
    running = answer.view is not None and answer.view.round is not None
    if wait and running and not answer.grants and body.want <= MOST_GRANTED:  # more keys would fill the memory
        release_body(request)
        with coordinator.places.waiting(run, body, caller) as place:  # only now: who is answered takes no more slots
            look, known = lambda: reader.standing(run, caller), lambda: reader.cached_standing(run, caller)
            free = lambda standing: place.served or standing[0] == math.inf  # noqa: E731
            await notifier.until(run, look, free, wait, question=("round", caller.id), known=known)
            answer = place.leave() or await coordinator.tickets(run, body, caller)
    headers = None if answer.grants else {"Retry-After": str(RETRY_SECONDS)}
    return Response(answer.model_dump_json(), headers=headers, media_type="application/json")


@round_routes.get("/runs/{run}/cohorts/{cohort}/keys", responses=problems(WrongCohort, WrongStage))
def key_hashes(run: str, cohort: str, reader: ReaderDep) -> KeyHashes:
    """Return the hashes of the clients' keys, by slot. Clients compare the aggregator's roster with them."""
    return reader.key_hashes(run, cohort)


@round_routes.get("/runs/{run}/cohorts/{cohort}/statements", responses=problems(WrongCohort, WrongStage))
async def cohort_statements(
    run: str, cohort: str, reader: ReaderDep, notifier: NotifierDep, *, wait: Wait = 0, after: After = 0
) -> StatementList:
    """Return the aggregator's statements of a cohort; with `wait`, wait for more, or for the cohort's end."""
    look = lambda: reader.statements(run, cohort)  # noqa: E731
    more = lambda listed: len(listed.statements) > after or listed.over  # noqa: E731
    listed: StatementList = await notifier.until(run, look, more, wait, question=("statements", cohort))
    return listed.model_copy(update={"statements": listed.statements[after:]})


@round_routes.get("/runs/{run}/cohorts/{cohort}/records", responses=problems(WrongCohort, WrongStage))
async def cohort_records(
    run: str, cohort: str, reader: ReaderDep, notifier: NotifierDep, *, wait: Wait = 0
) -> RecordList:
    """Return the list of the records that this server collected of a crowd; with `wait`, wait until there is one."""
    look = lambda: reader.records(run, cohort)  # noqa: E731
    there = lambda listed: bool(listed.hashes) or listed.over  # noqa: E731
    listed: RecordList = await notifier.until(run, look, there, wait, question=("records", cohort))
    return listed


@round_routes.post(
    "/runs/{run}/cohorts/{cohort}/receipts", responses=problems(WrongCohort, WrongStage, BadMessage, Unavailable)
)
async def give_receipts(
    run: str,
    cohort: str,
    body: Annotated[Receipts, JsonBody.of(Receipts)],
    *,
    coordinator: CoordinatorDep,
    response: Response,
) -> UploadAnswer:
    """Take what clients of a crowd say of their records, before its batch is analyzed. A first answer counts."""
    if body.cohort != cohort:
        raise BadMessage(f"receipts of {body.cohort} were sent to {cohort}")
    return mark_fault(await coordinator.receipts(run, body), response)


@list_routes.get("/runs/{run}/rounds", tags=["rounds"], responses=problems(WrongCohort))
def list_rounds(run: str, reader: ReaderDep, after: After = 0, limit: Limit = 50) -> RoundList:
    """Return rounds with their cohorts, page by page; `after` is a round's number."""
    return reader.rounds(run, after, limit)


@list_routes.get("/runs/{run}/rounds/{number}", tags=["rounds"], responses=problems(WrongCohort))
def one_round(run: str, number: int, reader: ReaderDep) -> RoundReport:
    """Return one round with its cohorts."""
    return reader.round_report(run, number)


@watch_routes.get(
    "/runs/{run}/cohorts/{cohort}/messages",
    dependencies=[OperatorOnly],
    responses=problems(Unauthorized, WrongCohort, WrongStage),
)
def show_transcript(  # noqa: PLR0917  the parameters of the address
    run: str, cohort: str, reader: ReaderDep, after: After = 0, limit: Limit = 100, each: Each = None
) -> Transcript:
    """Return this server's transcript of a cohort, message by message.

    With `each` it is a page of the first messages of each stage and direction. `total` counts all messages in any case,
    and `next` may leave some out.
    """
    return reader.transcript(run, cohort, after, limit, each)


@list_routes.get("/runs/{run}/ledger", tags=["watching"], responses=problems(WrongCohort))
def show_ledger(run: str, reader: ReaderDep) -> LedgerView:
    """Return the cost of each round to its clients, and the total."""
    return reader.ledger(run)


@list_routes.get("/runs/{run}/intervals", tags=["watching"], responses=problems(WrongCohort))
def show_intervals(run: str, reader: ReaderDep, after: After = 0, limit: Limit = 50) -> IntervalList:
    """Return the confidence intervals that each closed round formed, page by page; `after` is a round's number."""
    return reader.intervals(run, after, limit)


@watch_routes.get("/runs/{run}/regret", responses=problems(WrongCohort))
def show_regret(run: str, reader: ReaderDep) -> RegretCurve:
    """Return the regret curve that a driver of simulated clients posted; 404 without one."""
    return reader.regret(run)


@watch_routes.put(
    "/runs/{run}/regret",
    dependencies=[OperatorOnly],
    responses=problems(Unauthorized, WrongCohort, BadMessage),
)
def post_regret(
    run: str, regret: Annotated[RegretCurve, JsonBody.of(RegretCurve, OPERATORS_VALUES)], service: ServiceDep
) -> RegretCurve:
    """Keep a driver's regret curve for readers of the run's page; a later one takes its place. No policy reads it.

    It tells about true means: only a driver of simulated clients has it, and posts it on its operator's wish.
    """
    return service.keep_regret(run, regret)


@watch_routes.get("/runs/{run}/events", responses=problems(WrongCohort), response_class=StreamingResponse)
async def listen(
    run: str,
    reader: ReaderDep,
    notifier: NotifierDep,
    request: Request,
    *,
    after: After = 0,
    last_event_id: Annotated[str | None, Header(description="number of the last event that was seen")] = None,
) -> StreamingResponse:
    """Return a stream of the events after number `after` until the run is over; `Last-Event-ID` goes before `after`."""
    await run_in_threadpool(reader.config, run)  # unknown runs are refused before the stream begins
    if last_event_id and last_event_id.isascii() and last_event_id.isdecimal():
        after = int(last_event_id[:15])
    events = _stream(reader, notifier.changes, request.app.state.listeners, run, after)
    return StreamingResponse(events, media_type="text/event-stream")


async def _stream(
    reader: Reader, notifier: ChangeNotifier, listeners: Readers, run: str, after: int
) -> AsyncIterator[str]:
    """Yield events after number `after`. The framework cancels the stream when the caller hangs up.

    Listeners read one after another, in a thread, which then rests as long as it has read: a run may have hundreds of
    thousands of events, and clients wait for the same interpreter.
    """
    newest = lambda: reader.newest_event(run)  # noqa: E731
    while not notifier.closed:
        known, began = after, time.monotonic()
        later = lambda number: number > known  # noqa: B023, E731  used within this turn of the loop
        await notifier.until(run, newest, later, HEARTBEAT_SECONDS, question="events")
        try:
            async with listeners.turn():
                reading = time.monotonic()
                fresh, text, over = await run_in_threadpool(_sent_events, reader, run, after)
                await asyncio.sleep(time.monotonic() - reading)
        except Unavailable:
            return
        if fresh:
            after = fresh
            yield text
        if over:
            return
        if not fresh and time.monotonic() - began < HEARTBEAT_SECONDS / 2:
            return  # too many requests wait: this listener comes back with its `Last-Event-ID`
        if not fresh:
            yield ": still here\n\n"


def _sent_events(reader: Reader, run: str, after: int) -> tuple[int, str, bool]:
    """Return the number of the last event that is told, 0 for none; the events as text; whether the run is over."""
    fresh, over = reader.events(run, after)
    told = ((one.number, one.kind, one.model_dump_json(exclude_none=True)) for one in fresh)
    text = "".join(f"id: {number}\nevent: {kind}\ndata: {body}\n\n" for number, kind, body in told)
    return fresh[-1].number if fresh else 0, text, over


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Run the coordinator on the loop that serves; it calls the intermediaries over HTTP unless others are passed."""
    settings: ServerSettings = app.state.settings
    http = None
    intermediaries = app.state.intermediaries
    if intermediaries is None:
        token = app.state.operator_token or (lambda: None)
        http = HttpIntermediaries(settings.shuffler_url, settings.aggregator_url, token)
        intermediaries = http
    app.state.coordinator = RunCoordinator(app.state.service, intermediaries)
    app.state.housekeeper = Housekeeper(app.state.service, intermediaries)
    await app.state.coordinator.start()
    house = asyncio.create_task(app.state.housekeeper.keep_house())
    try:
        yield
    finally:
        house.cancel()
        with suppress(asyncio.CancelledError):
            await house
        await app.state.coordinator.stop()
        if http is not None:
            await http.aclose()
        app.state.keys.close()
        app.state.database.close()


def server_app(settings: ServerSettings, intermediaries: Intermediaries | None = None) -> FastAPI:
    """Return the server's app. Raises Unavailable or BadParameter when its database or its keys cannot be used."""
    api = [run_routes, round_routes, list_routes, watch_routes]
    routers = [*api, pages, cohort_pages, calculator_pages, static_routes]
    app = make_app("distrust server", _lifespan, routers, settings)
    answer_with_pages(app)
    app.state.intermediaries = intermediaries
    app.state.listeners = Readers(1, settings.max_waits)
    allow(*map(str.strip, settings.extensions.split(",")))
    app.state.database = open_database(settings.database_url, settings.pool)
    app.state.database.hold()
    app.state.database.check_pool()
    keys = app.state.keys = KeyFolder(settings.key_folder)
    keys.make(Store(app.state.database).open_runs())
    keys.hold()
    app.state.admission = Admission(app.state.operator_token, settings.participants_file)
    told, admission = app.state.notifier.notify, app.state.admission
    app.state.service = Service(app.state.database, keys, told, settings.window, admission)
    app.state.reader = Reader(app.state.service)
    return app
