"""The page of one cohort: what each party holds of it, stage by stage, and why it cannot know more.

The server renders what is public: the cohort, the sentences, and the laws of a flipped reward. The messages come from
each party's own transcript. The reader's browser fetches them, with the reader's tokens; this server never does.
"""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from distrust.common.calculator.flip import FlipView, flip_views
from distrust.common.errors import Unavailable, WrongCohort
from distrust.common.mechanisms import Mechanism
from distrust.common.messages.cohort import Cohort, Masking
from distrust.common.run.progress import CohortView, RoundReport, RunView
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


@dataclass(frozen=True, slots=True)
class Step:
    """One stage of a cohort's life. client, intermediary, server: what the party holds then, and why no more."""

    stage: str
    title: str
    client: str
    intermediary: str
    server: str


NOTHING = "Nothing of this stage reaches the server."
DIGEST = "A digest of what the aggregator told the clients. The server compares it, and can read nothing in it."

OPENED = Step(
    "cohort",
    "The server opens the cohort",
    "The run's configuration. The client computes the round again, and refuses one that differs.",
    "The public terms: how many clients, how many must answer, how messages travel. No data exists yet.",
    "The terms, which it chose. It holds no client's data.",
)
TICKETS = Step(
    "tickets",
    "The server hands out tickets",
    "A signed ticket for one slot.",
    "Nothing yet. It checks a ticket's signature when the slot's first message comes.",
    "How many slots each request took. A ticket names a slot, and no person.",
)
LEFT = Step(
    "departed",
    "Clients that left",
    "Its reward, if it has played. It sends nothing more.",
    "Which slots left. A departure says nothing of a reward.",
    "How many clients are lost in the end.",
)
RELEASED = Step(
    "batch",
    "The intermediary hands the batch over",
    "Its own reward and message. It sees no other client's.",
    "What it hands over.",
    "What the batch holds.",
)
ESTIMATE = Step(
    "estimate",
    "The server publishes its estimate",
    "The estimate, as every reader has it.",
    "The estimate, as every reader has it.",
    "The estimate follows from the batch, so it tells no more than that. Only the policy reads it.",
)
ABORTED = Step(
    "aborted",
    "The cohort is aborted",
    "Its reward stays its own. Nothing that holds it was opened.",
    "The messages that came until then. It opens none of them, and hands over no batch.",
    "The reason. It gets no batch of this cohort, and publishes no estimate of it.",
)

MASKED = (
    OPENED,
    TICKETS,
    Step(
        "keys",
        "Clients send public keys",
        "Two secret keys, made for this cohort alone, before the client knows it.",
        "Two public keys of each client. The secret halves never leave the clients.",
        "Hashes of the keys, which came with the ticket request. Clients compare the aggregator's list with them.",
    ),
    Step(
        "shares",
        "Clients share their seeds among neighbours",
        "A self seed and a key seed, cut into shares: enough neighbours together can rebuild them, fewer cannot.",
        "Sealed boxes, which it passes on. Each is sealed to the neighbour that may open it.",
        NOTHING,
    ),
    Step(
        "confirm",
        "Clients confirm the shares that they hold",
        "The shares of its neighbours, checked.",
        "Blends of shares with a random polynomial, which check them and hide the seeds.",
        DIGEST,
    ),
    Step(
        "masked",
        "Clients send masked numbers",
        "Its reward, plus its part of the noise, plus masks.",
        "A number that is uniform modulo m, whatever the reward. It knows none of the masks on it.",
        DIGEST,
    ),
    Step(
        "unmask",
        "Survivors send the shares that open the sum",
        "Of each neighbour one share: of the self seed if it answered, of the key seed if it vanished. Never both.",
        "Seeds that take the masks off the sum. Without both seeds of one client no single number opens.",
        DIGEST,
    ),
    LEFT,
    Step(
        "batch",
        "The aggregator hands the sum over",
        RELEASED.client,
        "The sum of the survivors' numbers modulo m. It has no client's number bare.",
        "The sum, and how many clients are in it. It never saw a single masked number.",
    ),
    ESTIMATE,
)
SEALED_REPORT = Step(
    "report",
    "Clients send sealed records",
    "Its reward, and the noisy number that it sealed to the server's key.",
    "Which client sent which record. It cannot open a record: it has no key of the server.",
    NOTHING,
)
UNLINKED = Step(
    "batch",
    "The shuffler hands the records over in random order",
    RELEASED.client,
    "Which record is whose, as before. It never saw what is in one.",
    "Each noisy number, in random order. Which client sent which is known to the shuffler only.",
)
SEALED = (OPENED, TICKETS, SEALED_REPORT, LEFT, UNLINKED, ESTIMATE)
DEALT = (
    OPENED,
    Step(
        "order",
        "The shuffler draws who plays what",
        "Nothing yet.",
        "A random order of the public list of actions.",
        "The public list. It does not know which slot plays which action.",
    ),
    TICKETS,
    Step(
        "claimed",
        "Clients ask what to play",
        "Its action, and a secret that it has drawn, so that no other party can ask in its place.",
        "Which slot plays which action, and no reward.",
        NOTHING,
    ),
    SEALED_REPORT,
    LEFT,
    Step(
        "batch",
        "The shuffler hands the records over, by action",
        RELEASED.client,
        "Which client's record is in which group. It never saw what is in a record.",
        "Noisy numbers of each action, in random order. Which client sent which is known to the shuffler only.",
    ),
    ESTIMATE,
)
BITS = (
    OPENED,
    TICKETS,
    Step(
        "report",
        "Clients send bits",
        "Its reward, and the random bits that it put beside it.",
        "Each client's bits. This mechanism trusts the shuffler with them: it must not collude with the server.",
        NOTHING,
    ),
    LEFT,
    Step(
        "batch",
        "The shuffler hands the bits over in random order",
        RELEASED.client,
        "What it hands over, and which client sent which bit.",
        "How many bits are 1 under each label. In random order bits tell nothing else.",
    ),
    ESTIMATE,
)
STEPS: dict[str, tuple[Step, ...]] = {"masked": MASKED, "sealed": SEALED, "dealt": DEALT, "bits": BITS}
"""The stages of a cohort by the kind of its channel, in the order of its life."""

WORDS = {
    "client": "the client",
    "aggregator": "the aggregator",
    "shuffler": "the shuffler",
    "server": "the server",
    "everyone": "every reader",
}


def steps(channel: str, state: str) -> list[Step]:
    """Return the stages of a cohort; an aborted one ends without batch and estimate."""
    whole = list(STEPS[channel])
    return [*whole[:-2], ABORTED] if state == "aborted" else whole


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
    return {
        "run": run,
        "report": report,
        "cohort": cohort,
        "message": message,
        "mechanism": mechanism,
        "via": message.via,
        "steps": steps(message.channel.kind, cohort.state),
        "facts": _channel_facts(message),
        "loss": _loss(cohort, message),
        "seeded": view.config.unsafe is not None,
        "is_open": is_open,
        "stage": known_stage(service, cohort, message) if is_open else "",
        "flips": flips,
        "busy": busy,
        "words": WORDS,
        "digest": message.config.hex(),
    }


def _channel_facts(message: Cohort) -> list[tuple[str, str]]:
    """Return the numbers of the channel that a reader of the replay needs."""
    channel = message.channel
    if isinstance(channel, Masking):
        return [
            ("modulus m", f"{channel.modulus:,}"),
            ("neighbours of a client", f"{channel.neighbours:,}"),
            ("shares that rebuild a seed", f"{channel.threshold:,}"),
        ]
    return []


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
    service: Cohorts = request.app.state.service
    return service


CohortsDep = Annotated[Cohorts, Depends(_cohorts)]

_drawings: OneAtATime[list[dict[str, Any]]] = OneAtATime(KEPT)


@cohort_pages.get("/runs/{run}/cohorts/{cohort}")
def show_cohort(run: str, cohort: str, request: Request, service: CohortsDep, part: Fragment = None) -> Response:
    """Return the page of one cohort. Its script may fetch from the cohort's intermediary, and from no other party."""
    context = cohort_context(service, run, cohort, _drawings if part is None else None)
    asked = standing_at(request, context["via"])
    own = {"title": f"Cohort {cohort}", "here": "", "address": asked["address"], "standing_at": asked}
    return page("cohort.html", part=part, connect=[asked["address"]], **own, **context)
