"""What each party saw of a cohort, put side by side."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from string import hexdigits

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from distrust.common.errors import WrongCohort
from distrust.common.messages.status import Transcript, TranscriptEntry
from distrust.common.run.progress import CohortView, RoundReport
from distrust.common.web.client import Http, Patience, Peer
from distrust.lab.stack.stack import Urls

PAGE = 500
OPENING = ("cohort", "tickets")
MOST_DIGITS, MOST_VALUES = 12, 6  # of a hexadecimal text, of a list
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
    messages: list[TranscriptEntry]


async def gather(urls: Urls, wanted: Wanted) -> list[Sight]:
    """Ask the server for the round and S for its transcripts. Raises WrongCohort for what nobody knows."""
    async with Http(PATIENCE) as http:
        server = http.peer(urls.server, urls.token)
        report = await server.get(f"/v1/runs/{wanted.run}/rounds/{wanted.round}", RoundReport)
        url = urls.aggregator if report.mechanism.via == "aggregator" else urls.shuffler
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


def _chosen(report: RoundReport, wanted: Wanted) -> list[CohortView]:
    if wanted.cohort is None:
        return report.cohorts
    found = [cohort for cohort in report.cohorts if cohort.cohort == wanted.cohort]
    if not found:
        raise WrongCohort(f"round {report.number} of {report.run} has no cohort {wanted.cohort}")
    return found


async def _pages(party: Peer, path: str, limit: int) -> Pages:
    """Page through one party's transcript; keep the first `limit` messages of every stage and direction."""
    kept: list[TranscriptEntry] = []
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
        cohort = sight.cohort
        head = f"{cohort.cohort}: round {sight.report.number}, arm {cohort.arm}, {cohort.clients:,} clients"
        out.print(head, style="bold", markup=False)
        out.print(_table(sight))
        shown = len(sight.by_s.messages) + len(sight.by_server.messages)
        total = sight.by_s.total + sight.by_server.total
        out.print(f"{shown:,} of {total:,} messages; --limit shows more of each stage\n", markup=False)


def _table(sight: Sight) -> Table:
    """Rows in the order of a cohort's life: opened, tickets handed out, messages, batch, estimate."""
    titles = ("stage", "a client sent", f"the {sight.report.mechanism.via} saw", "the server saw")
    table = Table(*titles, box=box.MINIMAL, show_edge=False)
    server = sight.by_server.messages
    for seen in server:
        if seen.stage in OPENING:
            table.add_row(seen.stage, "", "", _said(seen))
    heard = {seen.stage: seen for seen in server if seen.direction == "in"}  # statements, and the batch
    for seen in sight.by_s.messages:
        got = heard.pop(seen.stage, None) if seen.direction == "out" else None
        table.add_row(seen.stage, _sent(seen), _said(seen), _said(got) if got else "")
    rest = [seen for seen in server if seen.stage not in OPENING and seen.direction == "out"]
    for seen in [*heard.values(), *rest]:
        table.add_row(seen.stage, "", "", _said(seen))
    return table


def _sent(seen: TranscriptEntry) -> Text:
    """The client's own words: the bytes that left it. What the party says itself is no client's message."""
    client = seen.direction == "in" and seen.peer.startswith("client")
    return Text(f"{seen.peer}: {seen.bytes:,} B {_short(seen.hex)}" if client else "")


def _said(seen: TranscriptEntry) -> Text:
    """What the party said, or what it could make of what it got."""
    facts = ", ".join(f"{name.replace('_', ' ')} {_value(value)}" for name, value in seen.view.items())
    said = f"to {seen.peer}, {seen.bytes:,} B" if seen.direction == "out" else ""
    return Text(": ".join(part for part in (said, facts) if part))


def _value(value: str | float | list[int] | list[str]) -> str:
    if not isinstance(value, list):
        return _short(str(value))
    if len(value) == 1:
        return str(value[0])
    rest = f", … {len(value) - MOST_VALUES} more" if len(value) > MOST_VALUES else ""
    return f"[{', '.join(map(str, value[:MOST_VALUES]))}{rest}]"


def _short(text: str) -> str:
    """Words as they are; long hexadecimal text by its first digits."""
    long = len(text) > MOST_DIGITS and set(text) <= set(hexdigits)
    return f"{text[:MOST_DIGITS]}…" if long else text
