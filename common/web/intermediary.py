"""The routes that both S have: cohorts in, departures, batches and transcripts out."""

from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Depends, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from common.errors import (
    Aborted,
    BadMessage,
    BadParameter,
    Conflict,
    Unauthorized,
    Unavailable,
    WrongCohort,
    WrongStage,
)
from common.messages.batch import BatchAnswer
from common.messages.cohort import Cohort
from common.messages.listing import CohortList
from common.messages.transcript import Transcript
from common.messages.upload import Departure, Upload, UploadAnswer
from common.web.body import JsonBody, MessageRoute
from common.web.operator import InspectorOnly, OperatorOnly
from common.web.problems import RETRY_SECONDS, problems
from common.web.waiting import LONGEST_WAIT, Doorbell


class Party(Protocol):
    """An S as its routes know it (see common.intermediary.service)."""

    def open(self, cohort: Cohort) -> Cohort: ...
    def cohorts(self, *, only_open: bool = False) -> CohortList: ...
    def receive(self, name: str, stage: str, upload: Upload) -> UploadAnswer: ...
    def depart(self, name: str, departure: Departure) -> UploadAnswer: ...
    def batch(self, name: str) -> BatchAnswer | bytes: ...
    def transcript(self, name: str, after: int, limit: int) -> Transcript: ...


def _party(request: Request) -> Any:
    return request.app.state.service


def _doorbell(request: Request) -> Any:
    return request.app.state.doorbell


PartyDep = Annotated[Party, Depends(_party)]
DoorbellDep = Annotated[Doorbell, Depends(_doorbell)]
Wait = Annotated[float, Query(ge=0, le=LONGEST_WAIT, description="seconds to wait for an answer that says more")]
UploadBody = Annotated[Upload, JsonBody.of(Upload)]

UPLOAD_PROBLEMS = problems(BadMessage, WrongCohort, WrongStage, Aborted, Unavailable)

router = APIRouter(prefix="/v1", route_class=MessageRoute)


@router.put("/cohorts/{cohort}", dependencies=[OperatorOnly], responses=problems(Unauthorized, Conflict, BadParameter))
def open_cohort(cohort: str, body: Annotated[Cohort, JsonBody.of(Cohort)], party: PartyDep) -> Cohort:
    """Open a cohort; the same again changes nothing."""
    if body.cohort != cohort:
        raise BadMessage(f"cohort {body.cohort} was sent to the address of {cohort}")
    return party.open(body)


@router.get("/cohorts", dependencies=[OperatorOnly], responses=problems(Unauthorized))
def cohorts(
    party: PartyDep, *, only_open: Annotated[bool, Query(alias="open", description="leave out what is over")] = False
) -> CohortList:
    """Cohorts and where each stands."""
    return party.cohorts(only_open=only_open)


@router.post("/cohorts/{cohort}/departures", responses=problems(BadMessage, WrongCohort))
def depart(cohort: str, body: Annotated[Departure, JsonBody.of(Departure)], party: PartyDep) -> UploadAnswer:
    """Clients that leave: nobody waits for them any more."""
    return party.depart(cohort, body)


@router.get(
    "/cohorts/{cohort}/batch",
    dependencies=[OperatorOnly],
    responses=problems(Unauthorized, WrongCohort),
    response_model=BatchAnswer,
)
async def batch(cohort: str, party: PartyDep, doorbell: DoorbellDep, wait: Wait = 0) -> Response:
    """The mixed messages, or why there are none; the same bytes each time."""
    found = await doorbell.until(cohort, lambda: party.batch(cohort), _final, wait)
    if isinstance(found, bytes):
        return Response(found, media_type="application/json")
    headers = None if _final(found) else {"Retry-After": str(RETRY_SECONDS)}
    return Response(found.model_dump_json(), headers=headers, media_type="application/json")


@router.get("/cohorts/{cohort}/messages", dependencies=[InspectorOnly], responses=problems(Unauthorized, WrongCohort))
async def messages(
    cohort: str,
    party: PartyDep,
    after: Annotated[int, Query(ge=0, le=2**53, description="position to start from")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Transcript:
    """What this party saw, message by message."""
    return await run_in_threadpool(party.transcript, cohort, after, limit)


def _final(answer: BatchAnswer | bytes) -> bool:
    return isinstance(answer, bytes) or answer.state != "waiting"
