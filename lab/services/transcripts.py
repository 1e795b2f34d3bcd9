"""Shows the parties' views of a cohort side by side, and why each party cannot know more."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from string import hexdigits
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from distrust.common.errors import LONGEST_TEXT, BadParameter, Unauthorized, WrongCohort, without_controls
from distrust.common.extras import late
from distrust.common.notebook import Card, HtmlTable, NamedRows, Shown
from distrust.common.protocol.channels import channel_class
from distrust.common.protocol.channels.steps import CohortLifetime, Step, life
from distrust.common.protocol.messages.status import CohortEntry, CohortView, TranscriptEntry
from distrust.common.wire import INTERMEDIARIES, utc
from distrust.lab.services.outline import Outline, Pages, Party, Wanted
from distrust.lab.services.parties import Parties, reached
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import Urls

if TYPE_CHECKING:
    from distrust.lab.play import in_process
    from distrust.lab.play.run_file import RunFile
else:
    in_process = late("distrust.lab.play.in_process")

COLUMNS = ("cohort", "stage", "a client sent", "the intermediary saw", "the server saw")
WHY = "what each party holds in a stage, and why it cannot know more"
OPENING = ("cohort", "tickets", "keys")  # what the server has of them came before any message to the intermediary
MOST_DIGITS, MOST_VALUES = 12, 6  # of a hexadecimal text, of a list
LONGEST_LINE = 4000  # characters of a message's cell: a party may have named a million values


@dataclass(frozen=True, slots=True)
class PartyView:
    """One cohort, with its intermediary's and the server's transcripts, cut to the limit.

    channel  the kind of its channel; empty for a cohort that is planned only.
    missing  by party, why its transcript is not here; then its pages are None.
    receipts whether its clients give receipts.
    """

    report: Outline
    cohort: CohortView | CohortEntry
    by_intermediary: Pages | None
    by_server: Pages | None
    channel: str = ""
    missing: tuple[tuple[Party, str], ...] = ()
    receipts: bool = False

    @property
    def life(self) -> CohortLifetime:
        """Return the stages that the cohort reached, with what each party holds then, and those that it did not."""
        if not self.channel:
            return CohortLifetime([], [])
        ended, reason = self._end
        carried = self.by_intermediary.messages if self.by_intermediary else []
        served = self.by_server.messages if self.by_server else []
        seen = {entry.stage for entry in (*carried, *served)}
        return life(channel_class(self.channel).STEPS, ended, reason, seen, receipts=self.receipts)

    @property
    def _end(self) -> tuple[str, str | None]:
        """Return how the cohort stands, and why it was aborted; an intermediary's list gives no reason."""
        if isinstance(self.cohort, CohortEntry):
            return self.cohort.stage, None
        return self.cohort.state, self.cohort.reason


async def gather(where: Urls | DataDir, wanted: Wanted) -> list[PartyView]:
    """Return the cohorts of a round with the parties' transcripts, from services or from a stopped stack's databases.

    Raises WrongCohort for an unknown run, round or cohort; Unauthorized when no party shows its transcript.
    """
    async with reached(where) as parties:
        outline = await parties.outline(wanted)
        return [await _party_view(parties, outline, cohort, wanted) for cohort in _chosen(outline, wanted)]


async def _party_view(
    parties: Parties, outline: Outline, cohort: CohortView | CohortEntry, wanted: Wanted
) -> PartyView:
    if isinstance(cohort, CohortView) and cohort.state == "planned":
        return PartyView(outline, cohort, Pages(0, []), Pages(0, []))
    carried = await parties.pages(outline.intermediary, wanted, outline.address(cohort.cohort))
    served = await parties.pages("server", wanted, outline.address(cohort.cohort))
    shown: tuple[Party, ...] = (outline.intermediary, "server")
    missing = tuple((party, parties.missing[party]) for party in shown if party in parties.missing)
    if carried is None and served is None:
        raise Unauthorized("; ".join(f"the {party}: {why}" for party, why in missing))
    opening = next((entry.view for entry in served.messages if entry.stage == "cohort"), {}) if served else {}
    kind, receipts = opening.get("kind"), opening.get("receipts") is True
    if not kind:
        terms = await parties.terms(outline.intermediary, wanted, outline.address(cohort.cohort))
        kind, receipts = terms.channel.kind, terms.receipts
    return PartyView(outline, cohort, carried, served, str(kind), missing, receipts)


async def gather_held(where: Urls | DataDir, wanted: Wanted, file: "RunFile") -> dict[str, Any]:
    """Return what the simulated clients of the chosen cohorts held, JSON-able: the lab knows, no party does.

    Raises WrongCohort for an unknown cohort, and BadParameter as `held` does.
    """
    async with reached(where) as parties:
        outline = await parties.outline(wanted)
        chosen = [one for one in _chosen(outline, wanted) if isinstance(one, CohortEntry) or one.state != "planned"]
        opened = [await parties.terms(outline.intermediary, wanted, outline.address(one.cohort)) for one in chosen]
    if outline.config is None:
        raise BadParameter("server", None, "give the server's address: it tells whose run file the cohorts are of")
    if outline.config != file.config.digest():
        raise BadParameter("held", file.config.run, f"must be the run file that run {wanted.run} is of")
    return {"run": wanted.run, "cohorts": [in_process.held(file, cohort) for cohort in opened]}


def _chosen(outline: Outline, wanted: Wanted) -> Sequence[CohortView | CohortEntry]:
    if wanted.cohort is None:
        return outline.cohorts
    chosen = [cohort for cohort in outline.cohorts if cohort.cohort == wanted.cohort]
    if not chosen:
        raise WrongCohort(f"round {outline.number} of {wanted.run} has no cohort {wanted.cohort}")
    return chosen


@dataclass(frozen=True, slots=True, repr=False)
class Inspection(Shown):
    """The parties' transcripts of some cohorts, side by side.

    frame()  a row a message: its cohort and stage, and each party's text.
    """

    TABLES = ("messages",)

    party_views: list[PartyView]

    @override
    def _table(self, name: str) -> NamedRows:
        rows = [(party_view.cohort.cohort, *line) for party_view in self.party_views for line in lines_of(party_view)]
        return COLUMNS, (dict(zip(COLUMNS, row, strict=True)) for row in rows)

    @override
    def _line(self) -> str:
        return f"of {', '.join(party_view.cohort.cohort for party_view in self.party_views)}"

    @override
    def _cards(self) -> list[Card]:
        """Return a table a cohort: what a client sent, and what each party saw of it."""
        return [_card(party_view) for party_view in self.party_views]


def _card(party_view: PartyView) -> Card:
    head, lines = table_of(party_view)
    promise = party_view.report.guarantee
    assumed = [] if promise is None else [("assumes", assumption) for assumption in promise.assumptions]
    shown = [] if promise is None else [("guarantee", promise.line()), ("alone", promise.left_line())]
    facts = [*shown, *assumed]
    heads, steps = steps_table(party_view)
    why = HtmlTable(heads, steps, words=("stage", *head), caption=WHY, most=len(steps))
    more = f"{_shown(party_view)}; limit shows more of each stage"
    notes = [more, *absences(party_view), *scrubbed(party_view), *not_reached_lines(party_view.life)]
    return Card(head_of(party_view), facts, [HtmlTable(head, lines, words=head, most=len(lines)), why], notes)


def described(wanted: Wanted, party_views: Iterable[PartyView]) -> dict[str, Any]:
    """Return the JSON-able object of `inspect`.

    Each cohort has its state, its guarantee, both parties' messages (null for a party that is `missing`, with the
    reason) and its channel. `explanations` has by channel and end of a cohort what each party holds, stage by stage,
    and the stages that an aborted cohort did not reach.
    """
    seen = list(party_views)
    cohorts = [
        {
            **party_view.cohort.model_dump(mode="json"),
            "guarantee": promise.model_dump(mode="json") if (promise := party_view.report.guarantee) else None,
            "via": party_view.report.intermediary,
            "channel": party_view.channel or None,
            "intermediary": _dumped(party_view.by_intermediary),
            "server": _dumped(party_view.by_server),
            "missing": dict(party_view.missing),
        }
        for party_view in seen
    ]
    explained = [
        {
            "cohorts": [one.cohort.cohort for one in alike],
            "steps": [_explained(step) for step in lived.steps],
            "not_reached": [step.stage for step in lived.not_reached],
        }
        for lived, alike in by_life(seen)
    ]
    return {"run": wanted.run, "round": wanted.round, "cohorts": cohorts, "explanations": explained}


def by_life(party_views: Iterable[PartyView]) -> list[tuple[CohortLifetime, list[PartyView]]]:
    """Return the cohorts in groups that reached the same stages, with these stages."""
    groups: dict[tuple[str, ...], tuple[CohortLifetime, list[PartyView]]] = {}
    for party_view in party_views:
        lived = party_view.life
        if lived.steps:
            key = party_view.channel, *(step.stage for step in lived.steps)
            groups.setdefault(key, (lived, []))[1].append(party_view)
    return list(groups.values())


def _explained(step: Step) -> dict[str, str]:
    parties = {"client": step.client, "intermediary": step.intermediary, "server": step.server}
    return {"stage": step.stage, "title": step.title, **{name: str(held) for name, held in parties.items()}}


def not_reached_lines(lived: CohortLifetime) -> list[str]:
    """Return a sentence that names the stages that an aborted cohort did not reach; none for any other cohort."""
    return [f"not reached: {', '.join(step.stage for step in lived.not_reached)}"] if lived.not_reached else []


def _dumped(pages: Pages | None) -> dict[str, Any] | None:
    if pages is None:
        return None
    gone = {} if pages.scrubbed is None else {"scrubbed": pages.scrubbed}
    return {"total": pages.total, **gone, "messages": [message.model_dump(mode="json") for message in pages.messages]}


def print_party_views(party_views: Iterable[PartyView], out: Console) -> None:
    """Print one table a cohort: the clients' messages, as the intermediary could read them, and the server's view.

    After them, once for all cohorts that share it, stands a table of why each party cannot know more.
    """
    seen = list(party_views)
    for party_view in seen:
        out.print(head_of(party_view), style="bold", markup=False)
        _print_table(*table_of(party_view), out)
        for sentence in [*absences(party_view), *scrubbed(party_view)]:
            out.print(sentence, markup=False)
        out.print(f"{_shown(party_view)}; --limit shows more of each stage\n", markup=False)
    groups = by_life(seen)
    for lived, alike in groups:
        of = "" if len(groups) == 1 else f" ({', '.join(one.cohort.cohort for one in alike)})"
        out.print(f"{WHY}{of}", style="bold", markup=False)
        _print_table(*steps_table(alike[0]), out)
        for line in not_reached_lines(lived):
            out.print(line, markup=False)
        out.print()


def _print_table(head: Sequence[str], lines: Iterable[Sequence[str]], out: Console) -> None:
    table = Table(*head, box=box.MINIMAL, show_edge=False)
    for line in lines:
        table.add_row(*(Text(cell) for cell in line))
    out.print(table)


def head_of(party_view: PartyView) -> str:
    """Return the cohort's name, round, arm and clients."""
    cohort = party_view.cohort
    arm = f"arm {cohort.arm}, " if isinstance(cohort, CohortView) else ""
    return f"{cohort.cohort}: round {party_view.report.number}, {arm}{cohort.clients:,} clients"


def table_of(party_view: PartyView) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the heads and the lines of a cohort's table: a column for each party that is not missing.

    What a client sent is in its intermediary's transcript.
    """
    heads = ("stage", "a client sent", f"the {party_view.report.intermediary} saw", "the server saw")
    theirs = [
        0,
        *([] if party_view.by_intermediary is None else [1, 2]),
        *([] if party_view.by_server is None else [3]),
    ]
    return tuple(heads[one] for one in theirs), [tuple(line[one] for one in theirs) for line in lines_of(party_view)]


def steps_table(party_view: PartyView) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return heads and lines of the table that says what each party holds in a stage, and why it cannot know more."""
    heads = ("stage", "a client", f"the {party_view.report.intermediary}", "the server")
    steps = party_view.life.steps
    return heads, [(step.stage, str(step.client), str(step.intermediary), str(step.server)) for step in steps]


def absences(party_view: PartyView) -> list[str]:
    """Return a sentence for each party whose column is not shown."""
    return [
        f"the {party}'s column{', and what clients sent,' if party in INTERMEDIARIES else ''} is missing: {why}"
        for party, why in party_view.missing
    ]


def scrubbed(party_view: PartyView) -> list[str]:
    """Return a sentence for each party that has deleted messages of the cohort."""
    held = ((party_view.report.intermediary, party_view.by_intermediary), ("server", party_view.by_server))
    return [
        f"the {party} scrubbed its messages of this cohort at {utc(pages.scrubbed)}, as the run wishes"
        for party, pages in held
        if pages is not None and pages.scrubbed is not None
    ]


def _shown(party_view: PartyView) -> str:
    pages = [one for one in (party_view.by_intermediary, party_view.by_server) if one is not None]
    return f"{sum(len(page.messages) for page in pages):,} of {sum(one.total for one in pages):,} messages"


def lines_of(party_view: PartyView) -> list[tuple[str, str, str, str]]:
    """Return the messages in the order of a cohort's life: opened, tickets issued, messages, batch, estimate."""
    server = party_view.by_server.messages if party_view.by_server else []
    lines = [(_legible(entry.stage), "", "", _read(entry)) for entry in server if entry.stage in OPENING]
    received = {  # statements, and the batch
        entry.stage: entry for entry in server if entry.direction == "in" and entry.stage not in OPENING
    }
    for entry in party_view.by_intermediary.messages if party_view.by_intermediary else []:
        answer = received.pop(entry.stage, None) if entry.direction == "out" else None
        lines.append((_legible(entry.stage), _sent(entry), _read(entry), _read(answer) if answer else ""))
    rest = [entry for entry in server if entry.stage not in OPENING and entry.direction == "out"]
    return lines + [(_legible(entry.stage), "", "", _read(entry)) for entry in [*received.values(), *rest]]


def _sent(entry: TranscriptEntry) -> str:
    """Return the bytes of a client's message; empty for a message of another party."""
    client = entry.direction == "in" and entry.peer.startswith("client")
    return _legible(f"{entry.peer}: {entry.bytes:,} B {_short(entry.hex)}") if client else ""


def _read(entry: TranscriptEntry) -> str:
    """Return the readable part of a message, and its receiver."""
    facts = ", ".join(f"{name.replace('_', ' ')} {_value(value)}" for name, value in entry.view.items())
    receiver = f"to {entry.peer}, {entry.bytes:,} B" if entry.direction == "out" else ""
    return _legible(": ".join(part for part in (receiver, facts) if part))


def _value(value: str | float | list[int] | list[str]) -> str:
    if not isinstance(value, list):
        return _short(str(value))
    cut = [_short(one) if isinstance(one, str) else _cut(str(one)) for one in value[:MOST_VALUES]]
    if len(value) == 1:
        return cut[0]
    rest = f", … {len(value) - MOST_VALUES} more" if len(value) > MOST_VALUES else ""
    return f"[{', '.join(cut)}{rest}]"


def _short(text: str) -> str:
    """Return a text, cut to `LONGEST_TEXT`; of a long hexadecimal one the first digits."""
    long = len(text) > MOST_DIGITS and set(text) <= set(hexdigits)
    return _cut(text, MOST_DIGITS if long else LONGEST_TEXT)


def _cut(text: str, most: int = LONGEST_TEXT) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def _legible(text: str) -> str:
    """Return a party's words as one line of at most `LONGEST_LINE` characters, without control characters."""
    line = without_controls(text).replace("\n", "\ufffd").replace("\t", " ")
    return _cut(line, LONGEST_LINE)
