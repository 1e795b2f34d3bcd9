"""The page of one cohort: what each party holds of it, stage by stage, and why it cannot know more.

The server renders what is public: the cohort, the sentences, and the laws of a flipped reward. The messages come from
each party's own transcript. The reader's browser fetches them, with the reader's tokens; this server never does.
"""

import json
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from distrust.common.dp.calculator.flip import FlipView, flip_views
from distrust.common.dp.mechanisms import Mechanism
from distrust.common.errors import Unavailable, WrongCohort, WrongStage
from distrust.common.protocol.run.progress import RoundReport
from distrust.server.dashboard import ReadersPageRoute, page
from distrust.server.dashboard.calculator import OneAtATime
from distrust.server.dashboard.laws import flip_chart, uniform_chart
from distrust.server.dashboard.routes import Fragment, RunsDep, standing_at
from distrust.server.dashboard.views import Runs, known_stage

KEPT = 32  # cohorts' pictures in memory: rounds repeat their mechanism


def named(party: str) -> str:
    """Return a party's name within a sentence."""
    return "every reader" if party == "everyone" else f"the {party}"


def cohort_context(
    reader: Runs, run: str, name: str, drawings: OneAtATime[list[dict[str, Any]]] | None
) -> dict[str, Any]:
    """Return the context of a cohort's page. Raises WrongCohort, and WrongStage for a cohort that is not open yet.

    drawings  None: without the laws of a flipped reward, which the part that changes does not show.
    """
    message, mechanism = reader.cohort_terms(run, name)
    report = reader.round_report(run, message.round)
    cohort = next((one for one in report.cohorts if one.cohort == name), None)
    if cohort is None:
        raise WrongCohort(f"round {message.round} of {run} has no cohort {name}")
    view = reader.view(run)
    flips, busy = ([], "") if drawings is None else _flips(mechanism, report, drawings)
    is_open = cohort.state == "open" and view.state == "running"
    stated: list[str] = []
    if message.via == "aggregator":
        stated = [statement.stage for statement in reader.statements(run, name).statements]
    elif message.receipts and reader.collected(run, name):
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
        "facts": message.channel.facts,
        "seeded": view.config.unsafe is not None,
        "is_open": is_open,
        "stage": known_stage(reader, cohort, message) if is_open else "",
        "flips": flips,
        "busy": busy,
        "digest": view.digest.hex(),
    }


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
    name = named(view.party)
    charts = [flip_chart(view, f"What {name} sees of one client")]
    if view.party == "aggregator":
        charts.insert(0, uniform_chart("One masked number, as the aggregator gets it", mechanism.modulus))
    return {"view": view, "name": name, "charts": charts}


cohort_pages = APIRouter(include_in_schema=False, route_class=ReadersPageRoute)


_drawings: OneAtATime[list[dict[str, Any]]] = OneAtATime(KEPT)


@cohort_pages.get("/runs/{run}/cohorts/{cohort}")
def show_cohort(run: str, cohort: str, request: Request, reader: RunsDep, part: Fragment = None) -> Response:
    """Return the page of one cohort. Its script may fetch from the cohort's intermediary, and from no other party."""
    try:
        context = cohort_context(reader, run, cohort, _drawings if part is None else None)
    except WrongStage as error:
        return page("error.html", error.status, title=f"Cohort {cohort} waits for clients", run=run, waits=True)
    standing = standing_at(request, context["via"])
    own = {"title": f"Cohort {cohort}", "here": "", "address": standing["address"], "standing_at": standing}
    return page("cohort.html", part=part, connect=[standing["address"]], **own, **context)
