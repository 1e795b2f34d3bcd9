"""Shows the parties' views of a cohort side by side, and computes what simulated clients held."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from string import hexdigits
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from distrust.client.randomizer import true_vectors
from distrust.common.bandit.decisions import AssignedAction, Decision
from distrust.common.bandit.statistics import Statistic
from distrust.common.errors import BadParameter, WrongCohort
from distrust.common.mechanisms import AnyMechanism
from distrust.common.messages.cohort import Cohort
from distrust.common.messages.status import Transcript, TranscriptEntry
from distrust.common.notebook import HtmlTable, card, data_frame
from distrust.common.randomness import UnsafeSeededStream
from distrust.common.run.progress import CohortView, RoundReport
from distrust.common.web.client import Http, Patience, Peer
from distrust.lab.run.run_file import RunFile
from distrust.lab.stack.stack import Urls

if TYPE_CHECKING:
    from pandas import DataFrame

PAGE = 500
COLUMNS = ("cohort", "stage", "a client sent", "the intermediary saw", "the server saw")
OPENING = ("cohort", "tickets")
MOST_DIGITS, MOST_VALUES = 12, 6  # of a hexadecimal text, of a list
HELD_VALUES = 12  # coordinates of a client's vector in a file of what clients held
PATIENCE = Patience(first=0.2, longest=1.0, total=5.0)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Choice of transcripts to show. `limit`: messages of each stage and direction."""

    run: str
    round: int
    cohort: str | None
    limit: int


@dataclass(frozen=True, slots=True)
class Sight:
    """One cohort, with its intermediary's and the server's transcripts, cut to the limit."""

    report: RoundReport
    cohort: CohortView
    by_intermediary: "Pages"
    by_server: "Pages"


@dataclass(frozen=True, slots=True)
class Pages:
    """One party's messages of a cohort: those to show, and how many there are in all."""

    total: int
    messages: list[TranscriptEntry]


async def gather(urls: Urls, wanted: Wanted) -> list[Sight]:
    """Return the round as the server has it, and the parties' transcripts. Raises WrongCohort for an unknown cohort."""
    async with Http(PATIENCE) as http:
        server = http.peer(urls.server, urls.token)
        report = await server.get(f"/v1/runs/{wanted.run}/rounds/{wanted.round}", RoundReport)
        via = report.mechanism.via
        url = urls.aggregator if via == "aggregator" else urls.shuffler
        if not url:
            raise BadParameter(via, None, f"give the {via}'s address: it holds the clients' messages of this run")
        party = http.peer(url, urls.inspector)
        return [
            Sight(
                report,
                cohort,
                await _pages(party, f"/v1/cohorts/{cohort.cohort}/messages", wanted.limit),
                await _pages(server, f"/v1/runs/{wanted.run}/cohorts/{cohort.cohort}/messages", wanted.limit),
            )
            for cohort in _chosen(report, wanted)
        ]


async def gather_held(urls: Urls, wanted: Wanted, file: RunFile) -> dict[str, Any]:
    """Return what the simulated clients of the chosen cohorts held, JSON-able: the lab knows, no party does.

    Raises WrongCohort for an unknown cohort, and BadParameter as `held` does.
    """
    async with Http(PATIENCE) as http:
        report = await http.peer(urls.server, None).get(f"/v1/runs/{wanted.run}/rounds/{wanted.round}", RoundReport)
        party = http.peer(urls.aggregator if report.mechanism.via == "aggregator" else urls.shuffler, None)
        chosen = [one.cohort for one in _chosen(report, wanted) if one.state != "planned"]
        opened = [await party.get(f"/v1/cohorts/{cohort}/terms", Cohort) for cohort in chosen]
    return {"run": wanted.run, "cohorts": [held(file, cohort) for cohort in opened]}


def held(file: RunFile, cohort: Cohort) -> dict[str, Any]:
    """Return the reward of each simulated client of a cohort, drawn again from the environment's seed.

    With a noise seed also the number that the client sent before it was masked or sealed; without one only the client
    knew it. Raises BadParameter for a file of another run, one without a seed, and actions that the shuffler assigned.
    """
    if file.config.digest() != cohort.config:
        raise BadParameter("held", file.config.run, f"must be the run file that {cohort.cohort} is of")
    if file.drawn or file.environment.seed is None:
        raise BadParameter("environment.seed", None, "must be stated: without it no process knows what clients held")
    terms = json.loads(cohort.terms)
    decision = TypeAdapter[Decision](Decision).validate_python(terms["decision"])
    if isinstance(decision, AssignedAction):
        raise BadParameter("held", cohort.cohort, "the shuffler assigned the actions: it alone knows who played what")
    statistic = TypeAdapter[Statistic](Statistic).validate_python(terms["statistic"])
    stream = UnsafeSeededStream(file.environment.seed, cohort.run, cohort.cohort, "rewards")
    vectors = true_vectors(file.world(), decision, statistic, arm=terms["arm"], clients=cohort.clients, stream=stream)
    clients: list[dict[str, Any]] = [
        {"slot": slot, "reward": row} for slot, row in enumerate(vectors[:, :HELD_VALUES].tolist())
    ]
    if file.config.unsafe is not None:
        mechanism = TypeAdapter[AnyMechanism](AnyMechanism).validate_python(terms["mechanism"])
        noise = UnsafeSeededStream(file.config.unsafe.noise_seed, cohort.run, cohort.cohort)
        rows = mechanism.randomize(vectors, noise)[:, :HELD_VALUES].tolist()
        clients = [{**one, "message": row} for one, row in zip(clients, rows, strict=True)]
    return {"cohort": cohort.cohort, "config": cohort.config.hex(), "clients": clients}


def _chosen(report: RoundReport, wanted: Wanted) -> list[CohortView]:
    if wanted.cohort is None:
        return report.cohorts
    chosen = [cohort for cohort in report.cohorts if cohort.cohort == wanted.cohort]
    if not chosen:
        raise WrongCohort(f"round {report.number} of {report.run} has no cohort {wanted.cohort}")
    return chosen


async def _pages(party: Peer, path: str, limit: int) -> Pages:
    """Return one party's transcript, page by page: the first `limit` messages of every stage and direction."""
    kept: list[TranscriptEntry] = []
    counts: Counter[tuple[str, str]] = Counter()
    after: int | None = 0
    total = 0
    while after is not None:
        page = await party.get(path, Transcript, {"after": after, "limit": PAGE})
        total, after = page.total, page.next
        for entry in page.messages:
            counts[entry.stage, entry.direction] += 1
            kept += [entry] if counts[entry.stage, entry.direction] <= limit else []
    return Pages(total, kept)


@dataclass(frozen=True, slots=True, repr=False)
class Inspection:
    """The parties' transcripts of some cohorts, side by side."""

    sights: list[Sight]

    def frame(self) -> "DataFrame":
        """Return a row a message as a data frame: its cohort and stage, and each party's text. Needs pandas."""
        rows = [(sight.cohort.cohort, *line) for sight in self.sights for line in lines_of(sight)]
        return data_frame(COLUMNS, (dict(zip(COLUMNS, row, strict=True)) for row in rows))

    def __repr__(self) -> str:
        """Return the cohorts in one line."""
        return f"<Inspection of {', '.join(sight.cohort.cohort for sight in self.sights)}>"

    def _repr_html_(self) -> str:
        """Return a table a cohort for a notebook: what a client sent, and what each party saw of it."""
        return "".join(map(_html, self.sights))


def _html(sight: Sight) -> str:
    lines, head, promise = lines_of(sight), titles_of(sight), sight.report.guarantee
    facts = [("guarantee", promise.line()), *(("assumes", one) for one in promise.assumptions)]
    more = f"{_shown(sight)}; limit shows more of each stage"
    return card(head_of(sight), facts, HtmlTable(head, lines, words=head, most=len(lines)), notes=[more])


def described(wanted: Wanted, sights: Iterable[Sight]) -> dict[str, Any]:
    """Return the JSON-able object of `inspect`: state, guarantee and both parties' messages of each cohort."""
    cohorts = [
        {
            **sight.cohort.model_dump(mode="json"),
            "guarantee": sight.report.guarantee.model_dump(mode="json"),
            "via": sight.report.mechanism.via,
            "intermediary": _dumped(sight.by_intermediary),
            "server": _dumped(sight.by_server),
        }
        for sight in sights
    ]
    return {"run": wanted.run, "round": wanted.round, "cohorts": cohorts}


def _dumped(pages: Pages) -> dict[str, Any]:
    return {"total": pages.total, "messages": [one.model_dump(mode="json") for one in pages.messages]}


def print_sights(sights: Iterable[Sight], out: Console) -> None:
    """Print one table a cohort: the clients' messages, as the intermediary could read them, and the server's view."""
    for sight in sights:
        out.print(head_of(sight), style="bold", markup=False)
        table = Table(*titles_of(sight), box=box.MINIMAL, show_edge=False)
        for line in lines_of(sight):
            table.add_row(*(Text(cell) for cell in line))
        out.print(table)
        out.print(f"{_shown(sight)}; --limit shows more of each stage\n", markup=False)


def head_of(sight: Sight) -> str:
    """Return the cohort's name, round, arm and clients."""
    cohort = sight.cohort
    return f"{cohort.cohort}: round {sight.report.number}, arm {cohort.arm}, {cohort.clients:,} clients"


def titles_of(sight: Sight) -> tuple[str, str, str, str]:
    """Return the heads of a cohort's table: a column for each party."""
    return ("stage", "a client sent", f"the {sight.report.mechanism.via} saw", "the server saw")


def _shown(sight: Sight) -> str:
    shown = len(sight.by_intermediary.messages) + len(sight.by_server.messages)
    total = sight.by_intermediary.total + sight.by_server.total
    return f"{shown:,} of {total:,} messages"


def lines_of(sight: Sight) -> list[tuple[str, str, str, str]]:
    """Return the messages in the order of a cohort's life: opened, tickets issued, messages, batch, estimate."""
    server = sight.by_server.messages
    lines = [(entry.stage, "", "", _read(entry)) for entry in server if entry.stage in OPENING]
    received = {entry.stage: entry for entry in server if entry.direction == "in"}  # statements, and the batch
    for entry in sight.by_intermediary.messages:
        answer = received.pop(entry.stage, None) if entry.direction == "out" else None
        lines.append((entry.stage, _sent(entry), _read(entry), _read(answer) if answer else ""))
    rest = [entry for entry in server if entry.stage not in OPENING and entry.direction == "out"]
    return lines + [(entry.stage, "", "", _read(entry)) for entry in [*received.values(), *rest]]


def _sent(entry: TranscriptEntry) -> str:
    """Return the bytes of a client's message; empty for a message of another party."""
    client = entry.direction == "in" and entry.peer.startswith("client")
    return f"{entry.peer}: {entry.bytes:,} B {_short(entry.hex)}" if client else ""


def _read(entry: TranscriptEntry) -> str:
    """Return the readable part of a message, and its receiver."""
    facts = ", ".join(f"{name.replace('_', ' ')} {_value(value)}" for name, value in entry.view.items())
    receiver = f"to {entry.peer}, {entry.bytes:,} B" if entry.direction == "out" else ""
    return ": ".join(part for part in (receiver, facts) if part)


def _value(value: str | float | list[int] | list[str]) -> str:
    if not isinstance(value, list):
        return _short(str(value))
    if len(value) == 1:
        return str(value[0])
    rest = f", … {len(value) - MOST_VALUES} more" if len(value) > MOST_VALUES else ""
    return f"[{', '.join(map(str, value[:MOST_VALUES]))}{rest}]"


def _short(text: str) -> str:
    """Return a text; of a long hexadecimal one the first digits."""
    long = len(text) > MOST_DIGITS and set(text) <= set(hexdigits)
    return f"{text[:MOST_DIGITS]}…" if long else text
