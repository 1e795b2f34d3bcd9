"""The privacy page: what a mechanism promises and costs for one cohort, computed by `distrust.common.dp.calculator`.

Computing may take seconds of CPU, beside the server's runs. So one question is computed at a time, few may wait,
answers are kept, sizes are bounded, and only the operator may ask, unless the settings open the page to everyone.
Then all readers together get a burst of CPU, and a share of one core after it.
"""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, Generic, Literal, TypeVar

from fastapi import APIRouter, Depends, Header, Request
from starlette.responses import Response

from distrust.common.dp.accounting.guarantee import IF_OTHERS_COLLUDE
from distrust.common.dp.accounting.techniques.searches import one_thread
from distrust.common.dp.calculator.compare import COUNTS_ON, suited, trusted
from distrust.common.dp.calculator.flip import noise_law
from distrust.common.dp.calculator.query import PrivacyQuery
from distrust.common.dp.calculator.report import MechanismFigures, Report, labelled, report_on, six_digits
from distrust.common.dp.mechanisms import MECHANISMS
from distrust.common.errors import BadParameter, Unauthorized, Unavailable
from distrust.common.protocol.web.app import require_operator
from distrust.server.dashboard import PageRoute, page
from distrust.server.dashboard.laws import Drawn, law_chart

MOST_CLIENTS = 20_000
"""Largest cohort of the page. The command line takes larger ones, on the reader's own CPU."""

ANSWERS = 128  # kept in memory
WAITING = 4  # questions that may wait or be computed; each takes a thread of the server

BURST, SHARE = 30.0, 0.1
"""Seconds of CPU that readers without the operator's token may have computed at once, and the share of one core that
comes back. In t seconds they get at most BURST + SHARE · t, unless one question takes longer than QUESTION."""

QUESTION = 15.0
"""Seconds of CPU that must be left when a reader's question is begun. A question that takes longer overdraws."""

LONGEST_WORD = 40  # characters of a number that is typed, and of a value that is quoted

FIRST = next(name for name, kind in MECHANISMS.items() if kind.model == "distributed")
"""The mechanism that the page begins with: the first one that trusts no single party."""

DEFAULTS = {"mechanism": FIRST, "n": "1000", "epsilon": "1", "delta": "1e-6", "dropout": "0.1", "corrupt": "0.05"}
DEFAULTS |= {"batches": "64"}
"""The page's first question, and what its fields hold where an address leaves them out."""

SLIDERS = (
    # field, name, what it means, least, largest, step, logarithmic
    ("n", "n, clients", "clients of the cohort", 2, MOST_CLIENTS, 1, True),
    ("epsilon", "ε", "budget of a client, in nats", 0.01, 10, 0.01, True),
    ("delta", "δ", "where the mechanism's theorem has one", 1e-12, 0.01, 1e-12, True),
    ("dropout", "dropout", "share of the clients that may vanish", 0, 0.45, 0.01, False),
    ("corrupt", "corrupt", "share of the clients that may collude", 0, 0.45, 0.01, False),
)

T = TypeVar("T")


class OneAtATime(Generic[T]):
    """Computes values by key, one at a time, and keeps the latest `most`. Few callers may wait; others are refused."""

    def __init__(self, most: int, waiting: int = WAITING) -> None:
        self._most, self._kept = most, OrderedDict[str, T]()
        self._turn, self._places = threading.Lock(), threading.BoundedSemaphore(waiting)

    def get(self, key: str, compute: Callable[[], T]) -> T:
        """Return the value of a key. Raises Unavailable when too many callers wait, and what `compute` raises."""
        known = self._kept.get(key)
        if known is not None:
            return known
        if not self._places.acquire(blocking=False):
            raise Unavailable("the server computes for other readers: try again in a few seconds")
        try:
            with self._turn:
                known = self._kept.get(key)  # computed while this caller waited
                if known is None:
                    known = self._kept[key] = compute()
                    while len(self._kept) > self._most:
                        self._kept.popitem(last=False)
                return known
        finally:
            self._places.release()


class CpuAccount:
    """Counts CPU that is spent for readers. A question is computed while the account holds what one may take.

    burst     seconds that it holds at most.
    share     seconds of CPU that come back in a second.
    question  seconds that a question may take: with less, none is begun. Only one that takes more overdraws.
    """

    def __init__(
        self, burst: float, share: float, question: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._burst, self._share, self._question, self._clock = burst, share, question, clock
        self._left, self._at = burst, clock()

    def check(self) -> None:
        """Raise Unavailable while it holds less than a question may take, with the seconds until it does."""
        now = self._clock()
        self._left, self._at = min(self._burst, self._left + self._share * (now - self._at)), now
        if self._left < self._question:
            wait = math.ceil((self._question - self._left) / self._share)
            raise Unavailable(
                f"readers have used up the CPU that this server computes with for all of them: try again in {wait} s, "
                "or use `distrust privacy` on your own machine"
            )

    def spend(self, seconds: float) -> None:
        """Take seconds of CPU away. Only a question that took longer than it may leaves less than none."""
        self._left -= seconds


_answers: OneAtATime[dict[str, Any]] = OneAtATime(ANSWERS)
_readers = CpuAccount(BURST, SHARE, QUESTION)


def question(fields: dict[str, str]) -> tuple[str, PrivacyQuery]:
    """Return the mechanism's name and the question of the page's fields. Raises BadParameter, naming the field.

    Fields that the mechanism has no use for are not read.
    """
    name = fields["mechanism"]
    if name not in tuple(MECHANISMS):  # not for classes of the user's own: a reader must not have the server run them
        raise BadParameter("mechanism", name, f"must be one of {', '.join(MECHANISMS)}")
    kind = MECHANISMS[name]
    clients = int(_number("n", fields["n"], whole=True))
    if not 2 <= clients <= MOST_CLIENTS:
        raise BadParameter("n", clients, f"must lie in [2, {MOST_CLIENTS}]; `distrust privacy` takes larger cohorts")
    query = PrivacyQuery(
        clients=clients,
        epsilon=None if kind.model == "none" else _number("epsilon", fields["epsilon"]),
        delta=_number("delta", fields["delta"]) if kind.takes_delta else None,
        dropout=_number("dropout", fields["dropout"]),
        corrupt=_number("corrupt", fields["corrupt"]),
        batches=int(_number("batches", fields["batches"], whole=True)) if kind.takes_batches else None,
    )
    return name, suited(query, name)


def _number(field: str, text: str, *, whole: bool = False) -> float:
    try:
        value = float(text) if len(text) <= LONGEST_WORD else math.nan
    except ValueError:
        raise BadParameter(field, text, "must be a number") from None
    if not math.isfinite(value) or (whole and value != int(value)):
        kind = "whole" if whole else "finite"
        raise BadParameter(field, text, f"must be a {kind} number of at most {LONGEST_WORD} characters")
    return value


def refusal(error: BadParameter, fields: dict[str, str]) -> tuple[str, str]:
    """Return the page's field that is refused, and a sentence with its name on the page and the value as typed."""
    field = error.field.removeprefix("mechanism.")
    if field not in fields:
        return field, error.detail
    typed = fields[field]
    name = {"epsilon": "ε", "delta": "δ"}.get(field, field)
    return field, f"{name} = {typed if len(typed) <= LONGEST_WORD else typed[:LONGEST_WORD] + '…'}: {error.allowed}"


def answered(name: str, query: PrivacyQuery, account: CpuAccount | None = None) -> dict[str, Any]:
    """Return the context of the answer, computed once, pictures too.

    account  what pays for it; None: the operator asks.
    Raises   BadParameter, and Unavailable while too many questions wait or the account is empty.
    """

    def compute() -> dict[str, Any]:
        if account is not None:
            account.check()
        began = time.thread_time()
        try:
            with one_thread():
                return answer_context(report_on(name, query))
        finally:  # a question that is refused in the end costs as well
            if account is not None:
                account.spend(time.thread_time() - began)

    return _answers.get(f"{name} {asdict(query)}", compute)


def answer_context(report: Report) -> dict[str, Any]:
    """Return the context of an answer: a column for each calibration, or why there is none."""
    columns: list[dict[str, Any]] = []
    for calibration, side in report.sides.items():
        if isinstance(side, str):
            columns.append({"calibration": calibration, "refused": side})
        else:
            columns.append({"calibration": calibration, "rows": _rows(side), "chart": _chart(calibration, side)})
    query = report.query
    exact = report.sides["exact"]
    assert isinstance(exact, MechanismFigures)  # the report is refused as a whole without it
    notes = [*query.notes, *exact.promise.guarantee.assumptions, *exact.promise.profile.notes]
    return {
        "name": report.mechanism,
        "query": query,
        "columns": columns,
        "notes": list(dict.fromkeys(notes)),
        "trust": trusted(exact.mechanism),
        "promised": exact.promise.guarantee.kind != "none",
        "counts_on": COUNTS_ON[exact.mechanism.privacy().promise.model],
    }


def _rows(side: MechanismFigures) -> list[tuple[str, str]]:
    """Return names and figures, in the order of `distrust privacy`."""
    guarantee, profile, error = side.promise.guarantee, side.promise.profile, side.error
    rows = [
        ("guarantee", guarantee.kind),
        ("ε", labelled(guarantee.epsilon, guarantee.how)),
        ("δ", six_digits(guarantee.delta)),
        (IF_OTHERS_COLLUDE, side.promise.left()),
        ("pure ε", labelled(profile.pure.epsilon, profile.pure.how)),
        (f"ε at δ = {profile.delta:g}", labelled(profile.approximate.epsilon, profile.approximate.how)),
        ("bits a client", f"{side.bits:,}"),
        (f"error of {error.of}: standard deviation", six_digits(error.std)),
        ("rounding: standard deviation at most", six_digits(error.rounding_std)),
    ]
    shown = {0.1, 0.001, 1e-6}
    tails = [(p, value) for p, value in error.quantiles if p in shown]
    rows += [(f"|noise| above, with probability {p:g}", labelled(value, error.quantiles_how)) for p, value in tails]
    return [*rows, *((letter, six_digits(value)) for letter, value in side.parameters.items())]


def _chart(calibration: str, side: MechanismFigures) -> Any:
    law = noise_law(side.mechanism)
    if law is None:
        return None
    center = float(law.masses @ law.support)
    title = f"The noise in the sum, calibration {calibration}"
    step = float(getattr(side.mechanism, "step", 1.0))
    return law_chart(Drawn(title, [law], [("first", "noise")], "noise in the sum, in rewards", step, center))


calculator_pages = APIRouter(include_in_schema=False, route_class=PageRoute)


Asker = Literal["operator", "reader", "stranger"]


async def _asker(request: Request) -> Asker:
    """Return who asks: the operator, by the token; a reader, who pays from the account; a stranger gets no answer.

    Without a token any caller on this machine may operate the server. They all count as readers.
    """
    try:
        await require_operator(request)
    except (Unauthorized, Unavailable):  # of the token's file
        return "reader" if request.app.state.settings.calculator == "open" else "stranger"
    return "reader" if request.app.state.operator_token is None else "operator"


@calculator_pages.get("/privacy")
def privacy_page(
    request: Request,
    asker: Annotated[Asker, Depends(_asker)],
    part: Annotated[str | None, Header(alias="X-Fragment", description="only the part that changes")] = None,
) -> Response:
    """Return the calculator's page, with the answer to the question in its address."""
    fields = {field: request.query_params.get(field) or value for field, value in DEFAULTS.items()}
    context: dict[str, Any] = {"answer": None, "refused": "", "field": "", "closed": False}
    try:
        name, query = question(fields)
        if asker == "stranger":
            context["closed"] = True
        else:
            context["answer"] = answered(name, query, _readers if asker == "reader" else None)
    except BadParameter as error:
        context["field"], context["refused"] = refusal(error, fields)
    except Unavailable as error:
        context["refused"] = error.detail
    return page(
        "privacy.html",
        part=part,
        title="Privacy",
        here="/privacy",
        words=fields,
        sliders=SLIDERS,
        mechanisms=MECHANISMS,
        guarded=request.app.state.settings.calculator != "open" and request.app.state.operator_token is not None,
        **context,
    )
