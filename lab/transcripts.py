"""What each party saw of a cohort, put side by side."""

from collections import Counter
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
OPENING = ("cohort", "tickets")
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
    """One cohort, and what S and the server saw of it, cut to the limit."""

    report: RoundReport
    cohort: CohortView
    by_s: "Pages"
    by_server: "Pages"


@dataclass(frozen=True, slots=True)
class Pages:
    """One party's messages of a cohort: those to show, and how many there are in all."""

    total: int
    messages: list[Seen]


async def gather(urls: Urls, wanted: Wanted) -> list[Sight]:
    """Ask the server for the round and S for its transcripts. Raises WrongCohort for what nobody knows."""
    async with Http(PATIENCE) as http:
        server = http.peer(urls.server, urls.token)
        report = await server.get(f"/v1/runs/{wanted.run}/rounds/{wanted.round}", RoundReport)
        url = urls.aggregator if report.mechanism.via == "aggregator" else urls.shuffler
        party = http.peer(url, urls.inspector or urls.token)
        return [
            Sight(
                report,
                cohort,
                await _pages(party, f"/v1/cohorts/{cohort.cohort}/messages", wanted.limit),
                await _pages(server, f"/v1/runs/{wanted.run}/cohorts/{cohort.cohort}/messages", wanted.limit),
            )
            for cohort in _chosen(report, wanted)
        ]


def _chosen(report: RoundReport, wanted: Wanted) -> list[CohortView]:
    if wanted.cohort is None:
        return report.cohorts
    found = [cohort for cohort in report.cohorts if cohort.cohort == wanted.cohort]
    if not found:
        raise WrongCohort(f"round {report.number} of {report.run} has no cohort {wanted.cohort}")
    return found


async def _pages(party: Peer, path: str, limit: int) -> Pages:
    """Page through one party's transcript; keep the first `limit` messages of every stage and direction."""
    kept: list[Seen] = []
    counts: Counter[tuple[str, str]] = Counter()
    after: int | None = 0
    total = 0
    while after is not None:
        page = await party.get(path, Transcript, {"after": after, "limit": PAGE})
        total, after = page.total, page.next
        for seen in page.messages:
            counts[seen.stage, seen.direction] += 1
            kept += [seen] if counts[seen.stage, seen.direction] <= limit else []
    return Pages(total, kept)


def print_sights(sights: Iterable[Sight], out: Console) -> None:
    """One table a cohort: what clients sent, what S could read of it, what the server got to see."""
    for sight in sights:
        out.print(_table(sight))
        shown = len(sight.by_s.messages) + len(sight.by_server.messages)
        total = sight.by_s.total + sight.by_server.total
        out.print(f"{shown} of {total} messages; --limit shows more of each stage\n", markup=False)


def _table(sight: Sight) -> Table:
    """Rows in the order of a cohort's life: opened, tickets handed out, messages, batch, estimate."""
    cohort, via = sight.cohort, sight.report.mechanism.via
    title = f"{cohort.cohort}: round {sight.report.number}, arm {cohort.arm}, {cohort.clients} clients"
    table = Table("stage", "a client sent", f"the {via} saw", "the server saw", title=title, title_justify="left")
    before = [seen for seen in sight.by_server.messages if seen.stage in OPENING]
    later = [seen for seen in sight.by_server.messages if seen.stage not in OPENING]
    for seen in before:
        table.add_row(seen.stage, "", "", _said(seen))
    for seen in sight.by_s.messages:
        table.add_row(seen.stage, _sent(seen), _said(seen), "")
    for seen in later:
        table.add_row(seen.stage, "", "", _said(seen))
    return table


def _sent(seen: Seen) -> Text:
    """The client's own words: the bytes that left it. What the party says itself is no client's message."""
    client = seen.direction == "in" and seen.peer.startswith("client")
    return Text(f"{seen.peer}: {seen.bytes} B {_short(seen.hex)}" if client else "")


def _said(seen: Seen) -> Text:
    """What the party could make of it."""
    facts = ", ".join(f"{name} {_short(str(value))}" for name, value in seen.view.items())
    arrow = f"to {seen.peer}, " if seen.direction == "out" else f"from {seen.peer}, "
    return Text(f"{arrow}{seen.bytes} B: {facts}" if facts else f"{arrow}{seen.bytes} B")


def _short(text: str, most: int = 40) -> str:
    return text if len(text) <= most else text[:most] + "…"
