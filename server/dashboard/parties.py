"""The page of one cohort: what each party holds of it, stage by stage, and why it cannot know more.

The server renders what is public: the cohort, the sentences, and the laws of a flipped reward. The messages come from
each party's own transcript. The reader's browser fetches them, with the reader's tokens; this server never does.
"""

import json
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from distrust.common.bandit.contextual_choice import ContextualChoice
from distrust.common.bandit.decisions import AssignedAction
from distrust.common.dp.calculator.flip import FlipView, flip_views
from distrust.common.dp.mechanisms import Mechanism
from distrust.common.errors import Unavailable, WrongCohort, WrongStage
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import CohortView
from distrust.common.protocol.run.progress import RoundReport, RunView
from distrust.server.dashboard import ReadersPageRoute, page
from distrust.server.dashboard.calculator import OneAtATime
from distrust.server.dashboard.laws import flip_chart, uniform_chart
from distrust.server.dashboard.routes import Fragment, standing_at
from distrust.server.dashboard.views import Stated, known_stage

KEPT = 32  # cohorts' pictures in memory: rounds repeat their mechanism


class Cohorts(Stated, Protocol):
    """The public side of the server's service, as this page reads it. Raises WrongCohort for what is not here."""

    def view(self, run: str) -> RunView: ...
    def round_report(self, run: str, number: int) -> RoundReport: ...
    def cohort_terms(self, run: str, cohort: str) -> tuple[Cohort, Mechanism]: ...
    def collected(self, run: str, cohort: str) -> bool: ...


WAITS = (
    "It is planned, and is opened when a client asks for a ticket of it. From then on this page shows what each party "
    "holds of it. Load it again then."
)

WORDS = {
    "client": "the client",
    "aggregator": "the aggregator",
    "shuffler": "the shuffler",
    "server": "the server",
    "everyone": "every reader",
}


def cohort_context(
    service: Cohorts, run: str, name: str, drawings: OneAtATime[list[dict[str, Any]]] | None
) -> dict[str, Any]:
    """Return the context of a cohort's page. Raises WrongCohort, and WrongStage for a cohort that is not open yet.

    drawings  None: without the laws of a flipped reward, which the part that changes does not show.
    """
    message, mechanism = service.cohort_terms(run, name)
    report = service.round_report(run, message.round)
    cohort = next((one for one in report.cohorts if one.cohort == name), None)
    if cohort is None:
        raise WrongCohort(f"round {message.round} of {run} has no cohort {name}")
    view = service.view(run)
    flips, busy = ([], "") if drawings is None else _flips(mechanism, report, drawings)
    is_open = cohort.state == "open" and view.state == "running"
    stated: list[str] = []
    if message.via == "aggregator":
        stated = [statement.stage for statement in service.statements(run, name).statements]
    elif message.receipts and service.collected(run, name):
        stated = ["batch", "receipts"]
    lived = message.channel.life(cohort.state, cohort.reason, stated)
    return {
        "run": run,
        "report": report,
        "cohort": cohort,
        "message": message,
        "mechanism": mechanism,
        "via": message.via,
        "steps": lived.steps,
        "not_reached": lived.not_reached,
        "arm": arm_played(cohort, report),
        "facts": message.channel.facts,
        "loss": _loss(cohort, message),
        "seeded": view.config.unsafe is not None,
        "is_open": is_open,
        "stage": known_stage(service, cohort, message) if is_open else "",
        "flips": flips,
        "busy": busy,
        "words": WORDS,
        "digest": view.digest.hex(),
    }


def arm_played(cohort: CohortView, report: RoundReport) -> str:
    """Return which arm the cohort's clients play, as far as the server knows it."""
    if cohort.arm is not None:
        return str(cohort.arm)
    decision = report.decision
    if isinstance(decision, ContextualChoice):
        return "chosen on each client's device" if decision.only is None else f"{decision.only}, for all clients"
    if isinstance(decision, AssignedAction):
        return "assigned by the shuffler"
    return "each client plays all actions of the round"


def _loss(cohort: CohortView, message: Cohort) -> list[str]:
    """Return why an aborted cohort gave nothing, in sentences; empty for any other cohort."""
    if cohort.state != "aborted":
        return []
    slots = f"{cohort.clients:,} clients were asked for, and {cohort.granted:,} took a ticket."
    rule = f"A release needs at least {message.minimum:,} answers: the noise is calibrated to that many."
    return [
        f"Reason: {cohort.reason or 'none was kept'}.",
        f"{slots} {rule}",
        "Nothing was released: the server got no batch, and no estimate was published.",
        "The tickets count as pulls all the same. While the horizon lasts, fresh clients are asked in its place.",
    ]


def _flips(
    mechanism: Mechanism, report: RoundReport, drawings: OneAtATime[list[dict[str, Any]]]
) -> tuple[list[dict[str, Any]], str]:
    """Return the cards of the flipped reward, or none and the reason."""
    assigned = report.decision.kind == "assigned-action"
    key = json.dumps([mechanism.model_dump(mode="json"), assigned])

    def draw() -> list[dict[str, Any]]:
        return [_card(view, mechanism) for view in flip_views(mechanism, assigned=assigned)]

    try:
        return drawings.get(key, draw), ""
    except Unavailable as error:
        return [], error.detail


def _card(view: FlipView, mechanism: Mechanism) -> dict[str, Any]:
    charts = [flip_chart(view, f"What {WORDS[view.party]} sees of one client")]
    if view.party == "aggregator":
        charts.insert(0, uniform_chart("One masked number, as the aggregator gets it", mechanism.modulus))
    return {"view": view, "charts": charts, "moves": moves(view, mechanism), "distance": distance(view)}


def moves(view: FlipView, mechanism: Mechanism) -> str:
    """Return in a sentence what changes for the party when the reward flips."""
    match view.change:
        case "nothing":
            return "nothing. Both rewards give one and the same law."
        case "everything":
            return "the reward itself shows. The two rewards give different numbers."
        case "unknown":
            return "the law moves. The page does not compute by how much; the promise bounds it."
    if view.step is None:
        steps_ = mechanism.precision
        return f"the law of the number moves, by {steps_:,} grid {'step' if steps_ == 1 else 'steps'} at most."
    return "the law of the sum moves by one reward. Its noise makes both laws overlap."


def distance(view: FlipView) -> str:
    """Return how well the party can tell the two rewards apart."""
    if view.change == "nothing":
        return "ε = 0: it cannot tell the two rewards apart."
    if view.epsilon is None:
        exact = "No ε bounds it: some numbers come with one reward only."
        return exact if view.how == "exact" else "No ε is known for what it sees."
    sign = "=" if view.how == "exact" else "≤"
    figures, tail = f"ε {sign} {view.epsilon:.4g}", ""
    if view.delta:
        figures, tail = f"{figures} at δ = {view.delta:.3g}", ", plus δ"
    factor = _factor(view.epsilon)
    return f"{figures}: what it sees is at most {factor} times as probable with one reward as with the other{tail}."


def _factor(epsilon: float) -> str:
    return f"e^{epsilon:.4g} ≈ {2.718281828459045**epsilon:,.3g}" if epsilon < 20 else f"e^{epsilon:.4g}"


cohort_pages = APIRouter(include_in_schema=False, route_class=ReadersPageRoute)


async def _cohorts(request: Request) -> Cohorts:
    service: Cohorts = request.app.state.reader
    return service


CohortsDep = Annotated[Cohorts, Depends(_cohorts)]

_drawings: OneAtATime[list[dict[str, Any]]] = OneAtATime(KEPT)


@cohort_pages.get("/runs/{run}/cohorts/{cohort}")
def show_cohort(run: str, cohort: str, request: Request, service: CohortsDep, part: Fragment = None) -> Response:
    """Return the page of one cohort. Its script may fetch from the cohort's intermediary, and from no other party."""
    try:
        context = cohort_context(service, run, cohort, _drawings if part is None else None)
    except WrongStage as error:
        return page("error.html", error.status, title=f"Cohort {cohort} waits for clients", run=run, waits=WAITS)
    standing = standing_at(request, context["via"])
    own = {"title": f"Cohort {cohort}", "here": "", "address": standing["address"], "standing_at": standing}
    return page("cohort.html", part=part, connect=[standing["address"]], **own, **context)
