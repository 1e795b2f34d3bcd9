"""Serves the aggregator over HTTP: its settings, its routes, its app."""

from typing import Annotated, ClassVar, Literal

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from distrust.aggregator.service import CONFIRM, KEYS, MASKED, SHARES, UNMASK, Aggregator
from distrust.common.errors import BadMessage, BadParameter, BadTicket, Unauthorized, WrongCohort
from distrust.common.protocol.intermediary.deadlines import Clock
from distrust.common.protocol.messages.status import STATED, StageView, StatementList
from distrust.common.protocol.messages.upload import InboxRequest, UploadAnswer
from distrust.common.protocol.web.app import OperatorOnly
from distrust.common.protocol.web.bodies import JsonBody, MessageRoute, release_body
from distrust.common.protocol.web.intermediary import UPLOAD_PROBLEMS, Address, UploadBody, served, wire
from distrust.common.protocol.web.problems import mark_fault, problems
from distrust.common.protocol.web.settings import IntermediarySettings
from distrust.common.protocol.web.waiting import NotifierDep, Wait, Waiting


class AggregatorSettings(IntermediarySettings):
    """Environment variables DISTRUST_INSPECTOR_TOKEN_FILE, and those of every service."""

    service: ClassVar[str] = "aggregator"

    port: Annotated[int, Field(ge=0, le=65_535, description="0 takes any free port")] = 8703


AggregatorDep = Annotated[Aggregator, Depends(served)]
After = Annotated[
    Literal["keys", "shares", "confirm", "masked", "unmask"] | None, Query(description="the stage known already")
]
Known = Annotated[int, Query(ge=0, le=len(STATED), description="statements that the caller has already")]

router = APIRouter(prefix="/v1", tags=["aggregator"], route_class=MessageRoute)


@router.post("/cohorts/{run}/{cohort}/keys", responses=UPLOAD_PROBLEMS)
def take_keys(address: Address, body: UploadBody, aggregator: AggregatorDep, response: Response) -> UploadAnswer:
    """Take many clients' public keys. Return how many, and the refused ones."""
    return mark_fault(aggregator.receive(address, KEYS, body), response)


@router.post("/cohorts/{run}/{cohort}/shares", responses=UPLOAD_PROBLEMS)
def take_shares(address: Address, body: UploadBody, aggregator: AggregatorDep, response: Response) -> UploadAnswer:
    """Take commitments, and boxes for neighbours. Return how many, and the refused ones."""
    return mark_fault(aggregator.receive(address, SHARES, body), response)


@router.post("/cohorts/{run}/{cohort}/confirm", responses=UPLOAD_PROBLEMS)
def take_confirmations(
    address: Address, body: UploadBody, aggregator: AggregatorDep, response: Response
) -> UploadAnswer:
    """Take clients' confirmations of the shares that they hold. Return how many, and the refused ones."""
    return mark_fault(aggregator.receive(address, CONFIRM, body), response)


@router.post("/cohorts/{run}/{cohort}/masked", responses=UPLOAD_PROBLEMS)
def take_masked(address: Address, body: UploadBody, aggregator: AggregatorDep, response: Response) -> UploadAnswer:
    """Take masked vectors. Return how many, and the refused ones."""
    return mark_fault(aggregator.receive(address, MASKED, body), response)


@router.post("/cohorts/{run}/{cohort}/unmask", responses=UPLOAD_PROBLEMS)
def take_unmask(address: Address, body: UploadBody, aggregator: AggregatorDep, response: Response) -> UploadAnswer:
    """Take the shares that rebuild the masks. Return how many, and the refused ones."""
    return mark_fault(aggregator.receive(address, UNMASK, body), response)


@router.get("/cohorts/{run}/{cohort}/stage", responses=problems(WrongCohort))
async def open_stage(
    address: Address, aggregator: AggregatorDep, notifier: NotifierDep, *, after: After = None, wait: Wait = 0
) -> StageView:
    """Return the open stage; with `after` and `wait`, wait for a later stage."""
    await _later(aggregator, notifier, address, after, wait)
    return await run_in_threadpool(aggregator.view, address)


@router.post("/cohorts/{run}/{cohort}/stage", responses=problems(BadMessage, BadTicket, WrongCohort))
async def stage_with_inboxes(
    address: Address,
    body: Annotated[InboxRequest, JsonBody.of(InboxRequest)],
    *,
    aggregator: AggregatorDep,
    notifier: NotifierDep,
    request: Request,
    after: After = None,
    wait: Wait = 0,
) -> StageView:
    """Answer as GET …/stage; in stage confirm with the clients' inboxes, as many as fit into one answer."""
    slots = await run_in_threadpool(aggregator.asking, address, body)  # before it waits
    release_body(request)
    await _later(aggregator, notifier, address, after, wait)
    return await run_in_threadpool(aggregator.view, address, slots)


async def _later(aggregator: Aggregator, notifier: Waiting, address: str, after: str | None, wait: float) -> None:
    if after is not None:
        later = lambda name: aggregator.later(name, after)  # noqa: E731
        await notifier.until(address, lambda: aggregator.stage(address), later, wait, question="stage")


@router.get(
    "/cohorts/{run}/{cohort}/statements",
    dependencies=[OperatorOnly],
    responses=problems(Unauthorized, WrongCohort, BadParameter),
)
async def stage_statements(
    address: Address, aggregator: AggregatorDep, notifier: NotifierDep, *, after: Known = 0, wait: Wait = 0
) -> StatementList:
    """Return the statements after the first `after`; with `wait`, wait for one, or for the cohort's end."""
    return await notifier.until(
        address,
        lambda: aggregator.statements(address, after),
        lambda listed: bool(listed.statements) or listed.over,
        wait,
        question=("statements", after),
    )


def aggregator_app(settings: AggregatorSettings, clock: Clock | None = None) -> FastAPI:
    """Return the aggregator's app. Raises Unavailable or BadParameter when its database cannot be used."""
    return wire(Aggregator, router, settings, clock)
