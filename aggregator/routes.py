"""The aggregator's own routes: four stages in, the open stage out."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from starlette.concurrency import run_in_threadpool

from aggregator.service import KEYS, MASKED, SHARES, UNMASK, Aggregator
from aggregator.slots import parse_slots
from common.errors import BadParameter, WrongCohort
from common.messages.stage import StageView
from common.messages.upload import UploadAnswer
from common.web.body import MessageRoute
from common.web.intermediary import UPLOAD_PROBLEMS, DoorbellDep, UploadBody, Wait
from common.web.problems import problems


def _aggregator(request: Request) -> Aggregator:
    aggregator: Aggregator = request.app.state.service
    return aggregator


AggregatorDep = Annotated[Aggregator, Depends(_aggregator)]
After = Annotated[Literal["keys", "shares", "masked", "unmask"] | None, Query(description="the stage known already")]
Slots = Annotated[str, Query(description="slots whose inboxes are wanted in stage masked, such as 0-99,120")]

router = APIRouter(prefix="/v1", tags=["aggregator"], route_class=MessageRoute)


@router.post("/cohorts/{cohort}/keys", responses=UPLOAD_PROBLEMS)
def keys(cohort: str, body: UploadBody, aggregator: AggregatorDep) -> UploadAnswer:
    """Take many clients' public keys."""
    return aggregator.receive(cohort, KEYS, body)


@router.post("/cohorts/{cohort}/shares", responses=UPLOAD_PROBLEMS)
def shares(cohort: str, body: UploadBody, aggregator: AggregatorDep) -> UploadAnswer:
    """Take commitments, and boxes for neighbours."""
    return aggregator.receive(cohort, SHARES, body)


@router.post("/cohorts/{cohort}/masked", responses=UPLOAD_PROBLEMS)
def masked(cohort: str, body: UploadBody, aggregator: AggregatorDep) -> UploadAnswer:
    """Take masked vectors."""
    return aggregator.receive(cohort, MASKED, body)


@router.post("/cohorts/{cohort}/unmask", responses=UPLOAD_PROBLEMS)
def unmask(cohort: str, body: UploadBody, aggregator: AggregatorDep) -> UploadAnswer:
    """Take the shares that take the masks away."""
    return aggregator.receive(cohort, UNMASK, body)


@router.get("/cohorts/{cohort}/stage", responses=problems(WrongCohort, BadParameter))
async def stage(
    cohort: str,
    aggregator: AggregatorDep,
    doorbell: DoorbellDep,
    *,
    after: After = None,
    slots: Slots = "",
    wait: Wait = 0,
) -> StageView:
    """The open stage; with `after` and `wait`, as soon as it is a later one."""
    wanted = parse_slots(slots)
    if after is not None:
        await doorbell.until(
            cohort, lambda: aggregator.stage(cohort), lambda found: aggregator.later(found, after), wait
        )
    return await run_in_threadpool(aggregator.view, cohort, wanted)
