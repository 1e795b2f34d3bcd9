"""Serves the shuffler over HTTP: its settings, its routes, its app."""

from typing import Annotated, ClassVar

from fastapi import APIRouter, Depends, FastAPI, Response
from pydantic import Field

from distrust.common.errors import Aborted, BadMessage, WrongCohort, WrongStage
from distrust.common.protocol.intermediary.deadlines import Clock
from distrust.common.protocol.messages.status import StageView
from distrust.common.protocol.messages.upload import ActionAnswer, ActionRequest, UploadAnswer
from distrust.common.protocol.web.bodies import JsonBody, MessageRoute
from distrust.common.protocol.web.intermediary import UPLOAD_PROBLEMS, Address, UploadBody, served, wire
from distrust.common.protocol.web.problems import mark_fault, problems
from distrust.common.protocol.web.settings import IntermediarySettings
from distrust.common.protocol.web.waiting import NotifierDep, Wait
from distrust.shuffler.service import REPORT, Shuffler


class ShufflerSettings(IntermediarySettings):
    """Environment variables DISTRUST_INSPECTOR_TOKEN_FILE, and those of every service."""

    service: ClassVar[str] = "shuffler"

    port: Annotated[int, Field(ge=0, le=65_535, description="0 takes any free port")] = 8702


ShufflerDep = Annotated[Shuffler, Depends(served)]
"""The shuffler of the app that a request has reached."""

router = APIRouter(prefix="/v1", tags=["shuffler"], route_class=MessageRoute)


@router.post("/cohorts/{run}/{cohort}/reports", responses=UPLOAD_PROBLEMS)
def take_reports(address: Address, body: UploadBody, shuffler: ShufflerDep, response: Response) -> UploadAnswer:
    """Take many clients' reports. Return how many, and the refused ones."""
    return mark_fault(shuffler.receive(address, REPORT, body), response)


@router.post("/cohorts/{run}/{cohort}/actions", responses=problems(BadMessage, WrongCohort, WrongStage, Aborted))
def tell_actions(
    address: Address,
    body: Annotated[ActionRequest, JsonBody.of(ActionRequest)],
    shuffler: ShufflerDep,
    response: Response,
) -> ActionAnswer:
    """Return the actions that the shuffler assigned to clients' slots: a slot's to its first claimant only."""
    return mark_fault(shuffler.actions(address, body), response)


@router.get("/cohorts/{run}/{cohort}", responses=problems(WrongCohort))
async def report_stage(address: Address, shuffler: ShufflerDep, notifier: NotifierDep, wait: Wait = 0) -> StageView:
    """Return the cohort's stage; with `wait`, wait for its end."""
    closed = lambda view: view.stage != REPORT  # noqa: E731
    return await notifier.until(address, lambda: shuffler.view(address), closed, wait, question="stage")


def shuffler_app(settings: ShufflerSettings, clock: Clock | None = None) -> FastAPI:
    """Return the shuffler's app. Raises Unavailable or BadParameter when its database cannot be used."""
    return wire(Shuffler, router, settings, clock)
