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
from distrust.common.protocol.channels.steps import Life, Step, life
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
class Sight:
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
    def life(self) -> Life:
        """Return the stages that the cohort reached, with what each party holds then, and those that it did not."""
        if not self.channel:
            return Life([], [])
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


async def gather(where: Urls | DataDir, wanted: Wanted) -> list[Sight]:
    """Return the cohorts of a round with the parties' transcripts, from services or from a stopped stack's databases.

    Raises WrongCohort for an unknown run, round or cohort; Unauthorized when no party shows its transcript.
    """
    async with reached(where) as parties:
        outline = await parties.outline(wanted)
        return [await _sight(parties, outline, cohort, wanted) for cohort in _chosen(outline, wanted)]


async def _sight(parties: Parties, outline: Outline, cohort: CohortView | CohortEntry, wanted: Wanted) -> Sight:
    if isinstance(cohort, CohortView) and cohort.state == "planned":
        return Sight(outline, cohort, Pages(0, []), Pages(0, []))
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
    return Sight(outline, cohort, carried, served, str(kind), missing, receipts)


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

    sights: list[Sight]

    @override
    def _table(self, name: str) -> NamedRows:
        rows = [(sight.cohort.cohort, *line) for sight in self.sights for line in lines_of(sight)]
        return COLUMNS, (dict(zip(COLUMNS, row, strict=True)) for row in rows)

    @override
    def _line(self) -> str:
        return f"of {', '.join(sight.cohort.cohort for sight in self.sights)}"

    @override
    def _cards(self) -> list[Card]:
        """Return a table a cohort: what a client sent, and what each party saw of it."""
        return [_card(sight) for sight in self.sights]


def _card(sight: Sight) -> Card:
    head, lines = table_of(sight)
    promise = sight.report.guarantee
    assumed = [] if promise is None else [("assumes", one) for one in promise.assumptions]
    shown = [] if promise is None else [("guarantee", promise.line()), ("alone", promise.left_line())]
    facts = [*shown, *assumed]
    heads, steps = steps_table(sight)
    why = HtmlTable(heads, steps, words=("stage", *head), caption=WHY, most=len(steps))
    more = f"{_shown(sight)}; limit shows more of each stage"
    notes = [more, *absences(sight), *scrubbed(sight), *missed(sight.life)]
    return Card(head_of(sight), facts, [HtmlTable(head, lines, words=head, most=len(lines)), why], notes)


def described(wanted: Wanted, sights: Iterable[Sight]) -> dict[str, Any]:
    """Return the JSON-able object of `inspect`.

    Each cohort has its state, its guarantee, both parties' messages (null for a party that is `missing`, with the
    reason) and its channel. `explanations` has by channel and end of a cohort what each party holds, stage by stage,
    and the stages that an aborted cohort did not reach.
    """
    seen = list(sights)
    cohorts = [
        {
            **sight.cohort.model_dump(mode="json"),
            "guarantee": promise.model_dump(mode="json") if (promise := sight.report.guarantee) else None,
            "via": sight.report.intermediary,
            "channel": sight.channel or None,
            "intermediary": _dumped(sight.by_intermediary),
            "server": _dumped(sight.by_server),
            "missing": dict(sight.missing),
        }
        for sight in seen
    ]
    explained = [
        {
            "cohorts": [one.cohort.cohort for one in alike],
            "steps": [_explained(step) for step in lived.steps],
            "not_reached": [step.stage for step in lived.missed],
        }
        for lived, alike in by_life(seen)
    ]
    return {"run": wanted.run, "round": wanted.round, "cohorts": cohorts, "explanations": explained}


def by_life(sights: Iterable[Sight]) -> list[tuple[Life, list[Sight]]]:
    """Return the cohorts in groups that reached the same stages, with these stages."""
    groups: dict[tuple[str, ...], tuple[Life, list[Sight]]] = {}
    for sight in sights:
        lived = sight.life
        if lived.steps:
            key = sight.channel, *(step.stage for step in lived.steps)
            groups.setdefault(key, (lived, []))[1].append(sight)
    return list(groups.values())


def _explained(step: Step) -> dict[str, str]:
    parties = {"client": step.client, "intermediary": step.intermediary, "server": step.server}
    return {"stage": step.stage, "title": step.title, **{name: str(held) for name, held in parties.items()}}


def missed(lived: Life) -> list[str]:
    """Return a sentence that names the stages that an aborted cohort did not reach; none for any other cohort."""
    return [f"not reached: {', '.join(step.stage for step in lived.missed)}"] if lived.missed else []


def _dumped(pages: Pages | None) -> dict[str, Any] | None:
    if pages is None:
        return None
    gone = {} if pages.scrubbed is None else {"scrubbed": pages.scrubbed}
    return {"total": pages.total, **gone, "messages": [one.model_dump(mode="json") for one in pages.messages]}


def print_sights(sights: Iterable[Sight], out: Console) -> None:
    """Print one table a cohort: the clients' messages, as the intermediary could read them, and the server's view.

    After them, once for all cohorts that share it, stands a table of why each party cannot know more.
    """
    seen = list(sights)
    for sight in seen:
        out.print(head_of(sight), style="bold", markup=False)
        _print_table(*table_of(sight), out)
        for sentence in [*absences(sight), *scrubbed(sight)]:
            out.print(sentence, markup=False)
        out.print(f"{_shown(sight)}; --limit shows more of each stage\n", markup=False)
    groups = by_life(seen)
    for lived, alike in groups:
        of = "" if len(groups) == 1 else f" ({', '.join(one.cohort.cohort for one in alike)})"
        out.print(f"{WHY}{of}", style="bold", markup=False)
        _print_table(*steps_table(alike[0]), out)
        for line in missed(lived):
            out.print(line, markup=False)
        out.print()


def _print_table(head: Sequence[str], lines: Iterable[Sequence[str]], out: Console) -> None:
    table = Table(*head, box=box.MINIMAL, show_edge=False)
    for line in lines:
        table.add_row(*(Text(cell) for cell in line))
    out.print(table)


def head_of(sight: Sight) -> str:
    """Return the cohort's name, round, arm and clients."""
    cohort = sight.cohort
    arm = f"arm {cohort.arm}, " if isinstance(cohort, CohortView) else ""
    return f"{cohort.cohort}: round {sight.report.number}, {arm}{cohort.clients:,} clients"


def table_of(sight: Sight) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the heads and the lines of a cohort's table: a column for each party that is not missing.

    What a client sent is in its intermediary's transcript.
    """
    heads = ("stage", "a client sent", f"the {sight.report.intermediary} saw", "the server saw")
    theirs = [0, *([] if sight.by_intermediary is None else [1, 2]), *([] if sight.by_server is None else [3])]
    return tuple(heads[one] for one in theirs), [tuple(line[one] for one in theirs) for line in lines_of(sight)]


def steps_table(sight: Sight) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return heads and lines of the table that says what each party holds in a stage, and why it cannot know more."""
    heads = ("stage", "a client", f"the {sight.report.intermediary}", "the server")
    steps = sight.life.steps
    return heads, [(one.stage, str(one.client), str(one.intermediary), str(one.server)) for one in steps]


def absences(sight: Sight) -> list[str]:
    """Return a sentence for each party whose column is not shown."""
    return [
        f"the {party}'s column{', and what clients sent,' if party in INTERMEDIARIES else ''} is missing: {why}"
        for party, why in sight.missing
    ]


def scrubbed(sight: Sight) -> list[str]:
    """Return a sentence for each party that has deleted messages of the cohort."""
    held = ((sight.report.intermediary, sight.by_intermediary), ("server", sight.by_server))
    return [
        f"the {party} scrubbed its messages of this cohort at {utc(pages.scrubbed)}, as the run wishes"
        for party, pages in held
        if pages is not None and pages.scrubbed is not None
    ]


def _shown(sight: Sight) -> str:
    pages = [one for one in (sight.by_intermediary, sight.by_server) if one is not None]
    return f"{sum(len(one.messages) for one in pages):,} of {sum(one.total for one in pages):,} messages"


def lines_of(sight: Sight) -> list[tuple[str, str, str, str]]:
    """Return the messages in the order of a cohort's life: opened, tickets issued, messages, batch, estimate."""
    server = sight.by_server.messages if sight.by_server else []
    lines = [(_legible(entry.stage), "", "", _read(entry)) for entry in server if entry.stage in OPENING]
    received = {  # statements, and the batch
        entry.stage: entry for entry in server if entry.direction == "in" and entry.stage not in OPENING
    }
    for entry in sight.by_intermediary.messages if sight.by_intermediary else []:
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
