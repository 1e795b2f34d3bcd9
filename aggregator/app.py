"""Serves the aggregator over HTTP: its settings, its routes, its app."""

import re
from typing import Annotated, ClassVar, Literal

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from distrust.aggregator.service import CONFIRM, KEYS, MASKED, SHARES, UNMASK, Aggregator
from distrust.common.errors import BadParameter, Unauthorized, WrongCohort
from distrust.common.intermediary.stages import Clock
from distrust.common.messages.status import STATED, StageView, StatementList
from distrust.common.messages.upload import UploadAnswer
from distrust.common.web.app import OperatorOnly
from distrust.common.web.bodies import MessageRoute
from distrust.common.web.intermediary import UPLOAD_PROBLEMS, Address, UploadBody, wire
from distrust.common.web.problems import problems
from distrust.common.web.settings import IntermediarySettings
from distrust.common.web.waiting import NotifierDep, Wait

_MOST = 100_000  # slots that one request may ask for


class AggregatorSettings(IntermediarySettings):
    """Environment variables DISTRUST_INSPECTOR_TOKEN_FILE, and those of every service."""

    service: ClassVar[str] = "aggregator"

    port: Annotated[int, Field(ge=0, le=65_535, description="0 takes any free port")] = 8703


async def _aggregator(request: Request) -> Aggregator:
    aggregator: Aggregator = request.app.state.service
    return aggregator


AggregatorDep = Annotated[Aggregator, Depends(_aggregator)]
After = Annotated[
    Literal["keys", "shares", "confirm", "masked", "unmask"] | None, Query(description="the stage known already")
]
Slots = Annotated[str, Query(description="slots whose inboxes are wanted in stage confirm, such as 0-99,120")]

Known = Annotated[int, Query(ge=0, le=len(STATED), description="statements that the caller has already")]

_PART = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?", re.ASCII)


def parse_slots(text: str) -> list[int]:
    """Return the slots of a comma-separated list of numbers and inclusive ranges, each once. Raises BadParameter."""
    slots: list[int] = []
    for part in filter(None, text.split(",")):
        match = _PART.fullmatch(part)
        if match is None:
            raise BadParameter("slots", part[:40], "must be numbers and ranges such as 0-99,120")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or len(slots) + last - first >= _MOST:
            raise BadParameter("slots", part, f"must ascend, {_MOST} slots at most")
        slots.extend(range(first, last + 1))
    return list(dict.fromkeys(slots))


router = APIRouter(prefix="/v1", tags=["aggregator"], route_class=MessageRoute)


@router.post("/cohorts/{run}/{cohort}/keys", responses=UPLOAD_PROBLEMS)
def take_keys(address: Address, body: UploadBody, aggregator: AggregatorDep) -> UploadAnswer:
    """Take many clients' public keys. Return how many, and the refused ones."""
    return aggregator.receive(address, KEYS, body)


@router.post("/cohorts/{run}/{cohort}/shares", responses=UPLOAD_PROBLEMS)
def take_shares(address: Address, body: UploadBody, aggregator: AggregatorDep) -> UploadAnswer:
    """Take commitments, and boxes for neighbours. Return how many, and the refused ones."""
    return aggregator.receive(address, SHARES, body)


@router.post("/cohorts/{run}/{cohort}/confirm", responses=UPLOAD_PROBLEMS)
def take_confirmations(address: Address, body: UploadBody, aggregator: AggregatorDep) -> UploadAnswer:
    """Take clients' confirmations of the shares that they hold. Return how many, and the refused ones."""
    return aggregator.receive(address, CONFIRM, body)


@router.post("/cohorts/{run}/{cohort}/masked", responses=UPLOAD_PROBLEMS)
def take_masked(address: Address, body: UploadBody, aggregator: AggregatorDep) -> UploadAnswer:
    """Take masked vectors. Return how many, and the refused ones."""
    return aggregator.receive(address, MASKED, body)


@router.post("/cohorts/{run}/{cohort}/unmask", responses=UPLOAD_PROBLEMS)
def take_unmask(address: Address, body: UploadBody, aggregator: AggregatorDep) -> UploadAnswer:
    """Take the shares that rebuild the masks. Return how many, and the refused ones."""
    return aggregator.receive(address, UNMASK, body)


@router.get("/cohorts/{run}/{cohort}/stage", responses=problems(WrongCohort, BadParameter))
async def open_stage(
    address: Address,
    aggregator: AggregatorDep,
    notifier: NotifierDep,
    *,
    after: After = None,
    slots: Slots = "",
    wait: Wait = 0,
) -> StageView:
    """Return the open stage; with `after` and `wait`, wait for a later stage."""
    wanted = parse_slots(slots)
    if after is not None:
        later = lambda name: aggregator.later(name, after)  # noqa: E731
        await notifier.until(address, lambda: aggregator.stage(address), later, wait, question="stage")
    return await run_in_threadpool(aggregator.view, address, wanted)


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
