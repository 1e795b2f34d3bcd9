"""What each party saw of a cohort, put side by side."""

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.errors import WrongCohort
from common.messages.progress import CohortView, RoundReport
from common.messages.transcript import Seen, Transcript
from common.web.client import Http, Patience, Peer
from lab.stack import Urls

PAGE = 500
PATIENCE = Patience(first=0.2, longest=1.0, total=5.0)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to show. `limit`: messages of each stage and direction."""

    run: str
    round: int
    cohort: str | None
    limit: int


@dataclass(frozen=True, slots=True)
class Sight:
    """One cohort: the server's view of it, S's transcript cut to the limit, and how much there is in all."""

    report: RoundReport
    cohort: CohortView
    total: int
    messages: list[Seen]


async def gather(urls: Urls, wanted: Wanted) -> list[Sight]:
    """Ask the server for the round and S for its transcripts. Raises WrongCohort for what nobody knows."""
    async with Http(PATIENCE) as http:
        server = http.peer(urls.server, urls.token)
        report = await server.get(f"/v1/runs/{wanted.run}/rounds/{wanted.round}", RoundReport)
        url = urls.aggregator if report.mechanism.via == "aggregator" else urls.shuffler
        party = http.peer(url, urls.token)
        return [await _sight(party, report, cohort, wanted.limit) for cohort in _chosen(report, wanted)]


def _chosen(report: RoundReport, wanted: Wanted) -> list[CohortView]:
    if wanted.cohort is None:
        return report.cohorts
    found = [cohort for cohort in report.cohorts if cohort.cohort == wanted.cohort]
    if not found:
        raise WrongCohort(f"round {report.number} of {report.run} has no cohort {wanted.cohort}")
    return found


async def _sight(party: Peer, report: RoundReport, cohort: CohortView, limit: int) -> Sight:
    """Page through one cohort's transcript; keep the first `limit` messages of every stage and direction."""
    kept: list[Seen] = []
    counts: dict[tuple[str, str], int] = {}
    after: int | None = 0
    total = 0
    while after is not None:
        params = {"after": after, "limit": PAGE}
        page = await party.get(f"/v1/cohorts/{cohort.cohort}/messages", Transcript, params)
        total, after = page.total, page.next
        for seen in page.messages:
            kind = (seen.stage, seen.direction)
            counts[kind] = counts.get(kind, 0) + 1
            kept += [seen] if counts[kind] <= limit else []
    return Sight(report, cohort, total, kept)


def print_sights(sights: Iterable[Sight], out: Console) -> None:
    """One table a cohort: what clients sent, what S could read of it, what the server got."""
    for sight in sights:
        out.print(_table(sight))
        shown = len(sight.messages)
        out.print(f"{shown} of {sight.total} messages; --limit shows more of each stage\n", markup=False)


def _table(sight: Sight) -> Table:
    cohort, via = sight.cohort, sight.report.mechanism.via
    title = f"{cohort.cohort}: round {sight.report.number}, arm {cohort.arm}, {cohort.clients} clients"
    table = Table("stage", "clients sent", f"{via} could read", "server got", title=title, title_justify="left")
    for seen in sight.messages:
        table.add_row(*_row(seen))
    table.add_row("batch", "", "", Text(_released(cohort)))
    return table


def _row(seen: Seen) -> tuple[Text, ...]:
    sent = Text(f"{seen.peer}: {seen.bytes} B {_short(seen.hex)}")
    if seen.direction == "in":
        return Text(seen.stage), sent, Text(_view(seen)), Text("")
    to_server = seen.peer == "server"
    said = Text(f"→ {_view(seen)}" if to_server else f"→ {seen.peer}: {seen.bytes} B {_view(seen)}")
    return Text(seen.stage), Text(""), said, Text(f"{seen.bytes} B {_short(seen.hex)}" if to_server else "")


def _view(seen: Seen) -> str:
    return ", ".join(f"{name} {value}" for name, value in seen.view.items())


def _short(digits: str, most: int = 16) -> str:
    return digits if len(digits) <= most else digits[:most] + "…"


def _released(cohort: CohortView) -> str:
    if cohort.estimate is None:
        return f"{cohort.state}: {cohort.reason}" if cohort.reason else cohort.state
    sums = ", ".join(f"{value:.4f}" for value in cohort.estimate)
    return f"sum of {cohort.survivors} rewards ≈ {sums}, noise included"
