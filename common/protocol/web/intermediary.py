"""Serves the routes that both intermediaries have, and builds their app: settings, database, service."""

import asyncio
import re
from collections.abc import AsyncIterator, Collection, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from distrust.common.errors import (
    Aborted,
    BadMessage,
    BadParameter,
    Conflict,
    Gone,
    Unauthorized,
    Unavailable,
    WrongCohort,
    WrongStage,
)
from distrust.common.protocol.intermediary.deadlines import Clock, SystemClock
from distrust.common.protocol.intermediary.intake import check_fits
from distrust.common.protocol.intermediary.keeping import SCRUB_SECONDS
from distrust.common.protocol.intermediary.service import SHORT_TERMS, Intermediary
from distrust.common.protocol.intermediary.tables import METADATA, VERSION
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort, cohort_address, name_in
from distrust.common.protocol.messages.status import CohortList, DeliveryList, PrunedRun, Settled, Transcript
from distrust.common.protocol.messages.upload import Leaving, Upload, UploadAnswer
from distrust.common.protocol.storage.database import Database
from distrust.common.protocol.web import intermediary
from distrust.common.protocol.web.app import Each, InspectorOnly, OperatorOnly, make_app
from distrust.common.protocol.web.bodies import OPERATORS_VALUES, JsonBody, MessageRoute, release_body
from distrust.common.protocol.web.problems import NO_SNIFFING, RETRY_SECONDS, mark_fault, problems
from distrust.common.protocol.web.settings import IntermediarySettings
from distrust.common.protocol.web.waiting import SWEEP_SECONDS, NotifierDep, Wait, Waiting


async def served(request: Request) -> Any:
    """Return the party that a route serves, as a FastAPI dependency."""
    return request.app.state.service


RunDigest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="R of the run: 32 bytes in hexadecimal")]


async def _address(run: RunDigest, cohort: Annotated[str, Path(description="the cohort's name")]) -> str:
    return cohort_address(bytes.fromhex(run), cohort)


Address = Annotated[str, Depends(_address)]
"""`Cohort.address` of the cohort that a path names."""

PartyDep = Annotated[Intermediary, Depends(served)]
UploadBody = Annotated[Upload, JsonBody.of(Upload)]

MOST_DELIVERIES = 32_768
"""Deliveries in one answer: a megabyte of digests."""

_log = structlog.get_logger("distrust.intermediary")

UPLOAD_PROBLEMS = problems(BadMessage, WrongCohort, Conflict, WrongStage, Aborted, Unavailable)

router = APIRouter(prefix="/v1", route_class=MessageRoute)


@router.put(
    "/cohorts/{run}/{cohort}",
    dependencies=[OperatorOnly],
    responses=problems(Unauthorized, Conflict, BadParameter, Aborted, Gone),
    response_model=Cohort | BatchAnswer,
)
async def open_cohort(
    address: Address,
    body: Annotated[Cohort, JsonBody.of(Cohort, OPERATORS_VALUES)],
    *,
    party: PartyDep,
    request: Request,
    notifier: NotifierDep,
    wait: Wait = 0,
) -> Response:
    """Open a cohort and return it. Idempotent. With `wait`, answer as GET …/batch; with long terms at once."""
    if body.address != address:
        raise BadMessage(f"cohort {body.address} was sent to the address of {address}")
    check_fits(body, request.app.state.settings.max_body)
    if wait:
        fresh = party.known_terms(address) is None
        with suppress(Aborted):  # the batch's answer says so, too
            await run_in_threadpool(party.open, body)
        release_body(request)
        short = len(body.terms) <= SHORT_TERMS  # others would stay in memory as long as the call waits
        return await _batch(address, party, notifier, wait if short else 0, fresh=fresh)
    opened = await run_in_threadpool(party.open, body)
    return Response(opened.model_dump_json(), media_type="application/json")


@router.get("/cohorts/{run}/{cohort}/terms", responses=problems(WrongCohort))
async def terms(address: Address, party: PartyDep) -> Cohort:
    """Return the cohort as it was opened here. A client compares it with the server's copy."""
    known = party.known_terms(address)
    return await run_in_threadpool(party.terms, address) if known is None else known


@router.get("/cohorts", dependencies=[OperatorOnly], responses=problems(Unauthorized))
def cohorts(
    party: PartyDep,
    *,
    only_open: Annotated[bool, Query(alias="open", description="leave out what is over")] = False,
    run: Annotated[str | None, Query(max_length=80, description="only cohorts of this run")] = None,
    cohort: Annotated[str | None, Query(max_length=80, description="only this cohort")] = None,
    limit: Annotated[int | None, Query(ge=1, le=1000, description="the oldest ones only")] = None,
) -> CohortList:
    """Return the cohorts and where each stands: its stage, who answered, who is alive, the seconds left."""
    return party.cohorts(only_open=only_open, run=run, cohort=cohort, limit=limit)


@router.post("/cohorts/{run}/{cohort}/departures", responses=problems(BadMessage, WrongCohort))
def leave(
    address: Address, body: Annotated[Leaving, JsonBody.of(Leaving)], party: PartyDep, response: Response
) -> UploadAnswer:
    """Take departures: the stage no longer waits for these clients. Return the refused ones."""
    return mark_fault(party.leave(address, body), response)


@router.get(
    "/cohorts/{run}/{cohort}/batch",
    dependencies=[OperatorOnly],
    responses=problems(Unauthorized, WrongCohort, Gone),
    response_model=BatchAnswer,
)
async def batch(address: Address, party: PartyDep, notifier: NotifierDep, wait: Wait = 0) -> Response:
    """Return the mixed messages, or why there are none; the same bytes each time."""
    return await _batch(address, party, notifier, wait)


async def _batch(address: str, party: Intermediary, notifier: Waiting, wait: float, *, fresh: bool = False) -> Response:
    """Wait for a batch, and return it.

    fresh  the cohort was opened just now, so that the first look would find it waiting. It may have ended between its
           opening and this wait: one look after SWEEP_SECONDS is soon enough.
    """
    first = [BatchAnswer(cohort=name_in(address), state="waiting")] if fresh else []
    if fresh:
        asyncio.get_running_loop().call_later(SWEEP_SECONDS, notifier.changes.notify, address)
    look, known = lambda: party.batch(address), lambda: party.known_batch(address) or (first.pop() if first else None)
    answer = await notifier.until(address, look, _final, wait, question="batch", known=known)
    if isinstance(answer, bytes):
        return Response(answer, media_type="application/json")
    headers = None if _final(answer) else {"Retry-After": str(RETRY_SECONDS)}
    return Response(answer.model_dump_json(), headers=headers, media_type="application/json")


@router.get("/runs/{run}/delivered", dependencies=[OperatorOnly], responses=problems(Unauthorized, Gone))
def delivered_page(
    run: RunDigest,
    party: PartyDep,
    after: Annotated[int, Query(ge=0, le=2**53, description="position to start from")] = 0,
    limit: Annotated[int, Query(ge=1, le=MOST_DELIVERIES)] = MOST_DELIVERIES,
) -> DeliveryList:
    """Return the batches that were released of a run, in this order: none for an unknown one."""
    return party.delivered(bytes.fromhex(run), after, limit)


@router.post("/runs/{run}/settled", dependencies=[OperatorOnly], responses=problems(Unauthorized, BadMessage))
def settle(run: RunDigest, body: Annotated[Settled, JsonBody.of(Settled)], party: PartyDep) -> Settled:
    """Note that the server has committed how these cohorts ended: their batches may be scrubbed. Idempotent."""
    return party.settle(bytes.fromhex(run), body)


@router.delete("/runs/{run}", dependencies=[OperatorOnly], responses=problems(Unauthorized, Unavailable))
def prune(run: RunDigest, party: PartyDep) -> PrunedRun:
    """Delete all that is here of a run, for good: no cohort of it is opened again. Idempotent."""
    return party.prune(bytes.fromhex(run))


@router.get(
    "/cohorts/{run}/{cohort}/messages",
    name="messages",
    dependencies=[InspectorOnly],
    responses=problems(Unauthorized, WrongCohort, BadParameter),
)
async def transcript_page(  # noqa: PLR0917  the parameters of the address
    address: Address,
    party: PartyDep,
    after: Annotated[int, Query(ge=0, le=2**53, description="position to start from")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    each: Each = None,
    client: Annotated[
        int | None, Query(ge=0, lt=2**31, description="with `each`: a slot, all of whose messages are shown, too")
    ] = None,
) -> Transcript:
    """Return a page of this party's transcript, message by message.

    With `each` it is a page of the first messages of each stage and direction. `total` counts all messages in any case,
    and `next` may leave some out.
    """
    if client is not None and each is None:
        raise BadParameter("client", client, "goes with `each`: without it a page has the messages of all clients")
    return await run_in_threadpool(party.transcript, address, after, limit, each, client)


def _final(answer: BatchAnswer | bytes) -> bool:
    return isinstance(answer, bytes) or answer.state != "waiting"


class PageReaders:
    """Lets pages of named origins read transcripts and the list of cohorts, with a reader's own token (CORS).

    GET alone, and no other path. The pages come from the server. A reader's browser puts together what each party
    tells, so that the server never asks an intermediary for a transcript. For any other origin the answers have no
    header that opens them.
    """

    _PATH = re.compile(r"/v1/cohorts(/[^/]+/[^/]+/messages)?")
    _PREFLIGHT_SECONDS = "600"

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self._app, self._origins = app, frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._PATH.fullmatch(scope["path"]) is None:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        known = origin in self._origins

        async def opened(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer.add_vary_header("Origin")
                if known and origin is not None:
                    answer["Access-Control-Allow-Origin"] = origin
            await send(message)

        requested_method = headers.get("access-control-request-method")
        if known and scope["method"] == "OPTIONS" and requested_method == "GET":
            allowed = {
                **NO_SNIFFING,
                "Access-Control-Allow-Methods": "GET",
                "Access-Control-Allow-Headers": "Authorization",
                "Access-Control-Max-Age": self._PREFLIGHT_SECONDS,
            }
            await Response(status_code=204, headers=allowed)(scope, receive, opened)
            return
        await self._app(scope, receive, opened)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    scrubbing = asyncio.create_task(_scrub(app))
    try:
        yield
    finally:
        scrubbing.cancel()
        with suppress(asyncio.CancelledError):
            await scrubbing
        close(app)


async def _scrub(app: FastAPI) -> None:
    """Scrub what is due, again and again."""
    while True:
        try:
            await run_in_threadpool(app.state.service.scrub)
        except Exception:  # noqa: BLE001  a full disk must not keep messages for good
            _log.warning("scrub_delayed", exc_info=True)
        await asyncio.sleep(SCRUB_SECONDS)


def wire(
    kind: type[Intermediary], own: APIRouter, settings: IntermediarySettings, clock: Clock | None = None
) -> FastAPI:
    """Return the app of an intermediary with its `own` routes. Raises Unavailable, BadParameter for its database."""
    app = make_app(f"distrust {kind.party}", _lifespan, [intermediary.router, own], settings)
    if settings.dashboard_origins:
        app.add_middleware(PageReaders, origins=settings.dashboard_origins)
    database = Database(settings.database_url, METADATA, VERSION, settings.pool)
    database.hold()
    database.check_pool()
    app.state.database = database
    app.state.service = kind(database, clock or SystemClock(), app.state.notifier.notify)
    app.state.service.first_seconds = settings.first_seconds
    app.state.service.deadlines.rebase(settings.first_seconds)
    app.state.service.keeper.rebase()
    app.state.notifier.sweep = app.state.service.sweep
    return app


def close(app: FastAPI) -> None:
    """Finish the batch that is being mixed, and close the database."""
    app.state.service.close()
    app.state.database.close()
