"""The shuffler's own routes: reports in, the stage out."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from distrust.common.errors import Aborted, BadMessage, WrongCohort, WrongStage
from distrust.common.messages.status import StageView
from distrust.common.messages.upload import ActionAnswer, ActionRequest, UploadAnswer
from distrust.common.web.body import JsonBody, MessageRoute
from distrust.common.web.intermediary import UPLOAD_PROBLEMS, NotifierDep, UploadBody, Wait
from distrust.common.web.problems import problems
from distrust.shuffler.service import REPORT, Shuffler


async def _shuffler(request: Request) -> Shuffler:
    shuffler: Shuffler = request.app.state.service
    return shuffler


ShufflerDep = Annotated[Shuffler, Depends(_shuffler)]

router = APIRouter(prefix="/v1", tags=["shuffler"], route_class=MessageRoute)


@router.post("/cohorts/{cohort}/reports", responses=UPLOAD_PROBLEMS)
def reports(cohort: str, body: UploadBody, shuffler: ShufflerDep) -> UploadAnswer:
    """Hold many clients' reports; the answer lists only the refused ones."""
    return shuffler.receive(cohort, REPORT, body)


@router.post("/cohorts/{cohort}/actions", responses=problems(BadMessage, WrongCohort, WrongStage, Aborted))
def actions(
    cohort: str, body: Annotated[ActionRequest, JsonBody.of(ActionRequest)], shuffler: ShufflerDep
) -> ActionAnswer:
    """What many clients play, where S deals the actions; the same plays each time, to a slot's first asker only."""
    return shuffler.actions(cohort, body)


@router.get("/cohorts/{cohort}", responses=problems(WrongCohort))
async def stage(cohort: str, shuffler: ShufflerDep, notifier: NotifierDep, wait: Wait = 0) -> StageView:
    """Where the cohort stands; with `wait`, as soon as it is over."""
    closed = lambda view: view.stage != REPORT  # noqa: E731
    return await notifier.until(cohort, lambda: shuffler.view(cohort), closed, wait, question="stage")
