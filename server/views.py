"""Describes runs, rounds, ledgers and transcripts as messages, for watchers of a run."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from distrust.common.crypto.seal import open_record, sealed_size
from distrust.common.errors import BadMessage
from distrust.common.mechanisms import Mechanism
from distrust.common.messages.batch import Batch, GroupedRecords, ModularSum, PermutedBits, Records
from distrust.common.messages.cohort import AssignedRecords, Cohort, LabelledBits, Sealed, SealedRecords
from distrust.common.messages.status import Statement, Transcript, TranscriptEntry
from distrust.common.modular import unpack
from distrust.common.run.progress import (
    ArmInterval,
    CohortState,
    CohortView,
    IntervalList,
    LedgerLine,
    LedgerView,
    RoundIntervals,
    RoundList,
    RoundReport,
    RunLine,
    RunView,
)
from distrust.server.active_run import ActiveRun
from distrust.server.analyzer import ones_by_label
from distrust.server.learner.rounds import (
    SEEDED,
    CohortPlan,
    LostCohort,
    ReleasedCohort,
    RoundRecord,
    ledger_classes,
    promise_to_survivors,
    round_guarantee,
    run_ledger,
)
from distrust.server.policies.base import Query
from distrust.server.store import CohortRow, GrantRow, Store, UnreadRun

MOST_VALUES = 1000  # decoded values in one view
PREFIX = 64  # bytes shown in hex
SIGNATURE = 64  # bytes


def run_view(active: ActiveRun, store: Store) -> RunView:
    """Return configuration, state, estimates, and the number of clients."""
    with active.lock:
        counts = store.cohort_counts(active.config.run)
        cohorts = {state: counts.get(state, (0, 0))[0] for state in ("open", "released", "aborted")}
        return RunView(
            run=active.config.run,
            state=active.state,
            config=active.config,
            digest=active.digest,
            snapshot=active.snapshot(),
            clients=sum(granted for _, granted in counts.values()),
            cohorts_open=cohorts["open"],
            cohorts_released=cohorts["released"],
            cohorts_aborted=cohorts["aborted"],
            reason=active.reason,
        )


def run_line(active: ActiveRun) -> RunLine:
    """Return a run in one line."""
    config = active.config
    return RunLine(
        run=config.run, state=active.state, arms=config.arms, horizon=config.horizon, mechanism=config.mechanism.name
    )


def unread_line(unread: UnreadRun) -> RunLine:
    """Return in one line a stored run whose configuration cannot be read, as far as its words tell."""
    words = unread.words
    arms, horizon = (value if isinstance(value := words.get(key), int) else 0 for key in ("arms", "horizon"))
    mechanism = words.get("mechanism")
    name = mechanism.get("name") if isinstance(mechanism, dict) else None
    return RunLine(run=unread.run, state="failed", arms=arms, horizon=horizon, mechanism=str(name or "unknown"))


def round_report(
    active: ActiveRun, store: Store, record: RoundRecord, rows: dict[str, CohortRow] | None = None
) -> RoundReport:
    """Return one round with all its cohorts, replaced ones too. rows: the opened ones, where they are known."""
    if rows is None:
        rows = store.cohorts(active.config.run, record.number)
    return RoundReport(
        run=active.config.run,
        number=record.number,
        batch=record.ask.batch,
        decision=record.ask.decision,
        state=_round_state(active, record),
        arms=list(record.ask.arms),
        eliminated=list(record.eliminated),
        minimum=record.minimum,
        mechanism=record.mechanism,
        guarantee=round_guarantee(active.config, record),
        cohorts=[_cohort(record, plan, rows.get(plan.cohort), store) for plan in record.cohorts],
    )


def round_list(active: ActiveRun, store: Store, after: int, limit: int) -> RoundList:
    """Return rounds `after` + 1 … `after` + `limit`."""
    with active.lock:
        rounds = active.learner.rounds
        rows = store.cohorts(active.config.run, after + 1, after + limit)
        page = [round_report(active, store, record, rows) for record in rounds[after : after + limit]]
        following = after + limit if after + limit < len(rounds) else None
        return RoundList(run=active.config.run, total=len(rounds), next=following, rounds=page)


def interval_list(active: ActiveRun, after: int, limit: int) -> IntervalList:
    """Return the intervals of closed rounds, of rounds `after` + 1 … `after` + `limit`."""
    with active.lock:
        rounds = active.learner.rounds
        pulls = list(accumulate(_pulls(record) for record in rounds[: after + limit]))
        page = [
            RoundIntervals(
                round=record.number,
                pulls=spent,
                intervals=[
                    ArmInterval(arm=one.arm, mean=one.mean, lower=one.lower, upper=one.upper) for one in record.formed
                ],
            )
            for record, spent in zip(rounds[after : after + limit], pulls[after:], strict=True)
            if len(record.released) == len(record.ask.queries)
        ]
        following = after + limit if after + limit < len(rounds) else None
        return IntervalList(run=active.config.run, total=len(rounds), next=following, rounds=page)


def _pulls(record: RoundRecord) -> int:
    return record.ask.cost([Query(one.arm, one.clients) for one in record.cohorts])


def ledger_view(active: ActiveRun) -> LedgerView:
    """Return the cost of each round to its clients, and the total."""
    with active.lock:
        lines = [
            LedgerLine(round=record.number, clients=record.clients, guarantee=round_guarantee(active.config, record))
            for record in active.learner.rounds
        ]
        ledger = run_ledger(active.config, active.learner.rounds)
    return LedgerView(
        run=active.config.run,
        composition="parallel" if ledger.contributions == 1 else "sequential",
        contributions=ledger.contributions,
        lines=lines,
        classes=ledger_classes(ledger),
        total=ledger.total,
        budget=ledger.budget,
    )


def _round_state(active: ActiveRun, record: RoundRecord) -> Literal["open", "closed", "unfinished"]:
    if len(record.released) == len(record.ask.queries):
        return "closed"
    return "open" if active.state == "running" else "unfinished"


def _cohort(record: RoundRecord, plan: CohortPlan, row: CohortRow | None, store: Store) -> CohortView:
    state: CohortState = "planned" if row is None else row.state
    released = record.released.get(plan.arm) if state == "released" else None
    return CohortView(
        cohort=plan.cohort,
        arm=plan.arm,
        attempt=plan.attempt,
        clients=plan.clients,
        granted=0 if row is None else row.granted,
        state=state,
        survivors=released.survivors if released else None,
        lost=row.lost if row is not None else None,
        estimate=released.sum if released else None,
        counts=released.counts if released else None,
        liars=released.liars if released else [],
        disputes=released.disputes if released else 0,
        reason=_reason(plan.cohort, store) if state == "aborted" else None,
    )


def _reason(cohort: str, store: Store) -> str | None:
    outcome = store.outcome(cohort)
    return outcome.reason if isinstance(outcome, LostCohort) else None


View = dict[str, str | int | float | bool | list[int] | list[str]]


def cohort_transcript(
    store: Store, key: X25519PrivateKey, cohort: Cohort, mechanism: Mechanism, *, seeded: bool, after: int, limit: int
) -> Transcript:
    """Return the server's transcript of one cohort, in order: messages `after` … `after` + `limit` - 1.

    The messages are the cohort that it opened, tickets, statements, the batch, and the estimate or the loss.

    seeded  whether the run's noise comes from a seed.
    """
    makers = _makers(store, key, cohort, mechanism, seeded=seeded)
    messages = [make(number) for number, make in list(enumerate(makers))[after : after + limit]]
    following = after + limit if after + limit < len(makers) else None
    return Transcript(party="server", cohort=cohort.cohort, total=len(makers), next=following, messages=messages)


def _makers(
    store: Store, key: X25519PrivateKey, cohort: Cohort, mechanism: Mechanism, *, seeded: bool
) -> list[Callable[[int], TranscriptEntry]]:
    """Return a function for each message, so that only the requested page is decoded."""
    makers: list[Callable[[int], TranscriptEntry]] = [lambda number: _opening(number, cohort)]
    makers += [partial(_tickets, row) for row in store.cohort_grants(cohort.cohort)]
    makers += [partial(_statement, one) for one in store.statements(cohort.cohort)]
    answer, outcome = store.batch(cohort.cohort), store.outcome(cohort.cohort)
    if answer is not None and answer.batch is not None:
        batch = answer.batch
        makers.append(lambda number: _batch(number, cohort, batch, mechanism, key))
    if isinstance(outcome, ReleasedCohort):
        makers.append(lambda number: _estimate(number, outcome, mechanism, seeded=seeded))
    elif outcome is not None:
        makers.append(lambda number: _entry(number, "in", cohort.via, "aborted", b"", {"reason": outcome.reason}))
    return makers


def _opening(number: int, cohort: Cohort) -> TranscriptEntry:
    view: View = {"round": cohort.round, "clients": cohort.clients, "minimum": cohort.minimum}
    channel = cohort.channel.model_dump(mode="json", exclude={"server_key", "deal", "noise_seed"})
    view |= {name: value for name, value in channel.items() if value is not None}
    if isinstance(cohort.channel, AssignedRecords):
        assigned = cohort.channel.deal
        view |= {"actions": assigned.actions[:MOST_VALUES], "times": assigned.times[:MOST_VALUES]}
    return _entry(number, "out", cohort.via, "cohort", cohort.model_dump_json().encode(), view)


def _tickets(row: GrantRow, number: int) -> TranscriptEntry:
    """Return an entry of granted slots, without signatures.

    A ticket that was not used yet would still admit a client.
    """
    view: View = {"tickets": row.count, "first": row.first, "last": row.first + row.count - 1}
    size = SIGNATURE * row.count
    return TranscriptEntry(number=number, direction="out", peer="fleet", stage="tickets", bytes=size, view=view, hex="")


def _statement(statement: Statement, number: int) -> TranscriptEntry:
    """Return an entry of a statement. The server can only tell whether two digests are equal."""
    view: View = {"statement": statement.digest.hex()}
    return _entry(number, "in", "aggregator", statement.stage, statement.digest, view)


def _estimate(number: int, outcome: ReleasedCohort, mechanism: Mechanism, *, seeded: bool) -> TranscriptEntry:
    view: View = {"survivors": outcome.survivors, "sum": [f"{value:.6g}" for value in outcome.sum]}
    view |= {} if outcome.counts is None else {"by_action": outcome.counts[:MOST_VALUES]}
    view["privacy"] = SEEDED if seeded else promise_to_survivors(mechanism, outcome.survivors)
    return _entry(number, "out", "everyone", "estimate", outcome.model_dump_json().encode(), view)


def _batch(number: int, cohort: Cohort, batch: Batch, mechanism: Mechanism, key: X25519PrivateKey) -> TranscriptEntry:
    view: View = {"survivors": batch.survivors, "kind": batch.content.kind}
    try:
        view |= _content(cohort, batch, mechanism, key)
    except BadMessage as error:
        view |= {"refused": error.detail}
    return _entry(number, "in", cohort.via, "batch", batch.content.body, view)


def _content(cohort: Cohort, batch: Batch, mechanism: Mechanism, key: X25519PrivateKey) -> View:
    """Return the readable part of a batch: a sum, unlinked records in random order, or counts of ones."""
    content, channel = batch.content, cohort.channel
    if isinstance(content, ModularSum):
        total = unpack(content.body, mechanism.modulus, mechanism.dimension)
        return {"modulus": mechanism.modulus, "sum": total[:MOST_VALUES].tolist()}
    if isinstance(content, PermutedBits) and isinstance(channel, LabelledBits):
        counts = ones_by_label(content.body, channel, batch.survivors)[:MOST_VALUES].tolist()
        return {"bits": batch.survivors * channel.width, "ones": counts}
    if isinstance(content, Records) and isinstance(channel, Sealed):
        return {"records": content.count, "values": _values(cohort, channel, content.body, mechanism, key)}
    if isinstance(content, GroupedRecords) and isinstance(channel, AssignedRecords):
        values = _values(cohort, channel, content.body, mechanism, key, content.counts)
        return {"by_action": content.counts[:MOST_VALUES], "values": values}
    raise BadMessage(f"kind {content.kind} in a {channel.kind} channel")


def _values(  # noqa: PLR0917  what it takes to open a record, and where each group ends
    cohort: Cohort,
    channel: SealedRecords,
    body: bytes,
    mechanism: Mechanism,
    key: X25519PrivateKey,
    groups: Sequence[int] = (),
) -> list[int]:
    """Return the first records' values, in the shuffler's random order; of assigned actions group after group."""
    size = sealed_size(channel.size)
    records = max(1, MOST_VALUES // mechanism.dimension)
    ends = list(accumulate(groups))
    values: list[int] = []
    for number, at in enumerate(range(0, min(len(body), records * size), size)):
        place = bisect_right(ends, number) if ends else None
        _, payload = open_record(key, cohort, body[at : at + size], place)
        values += unpack(payload, mechanism.modulus, mechanism.dimension)[:MOST_VALUES].tolist()
    return values


def _entry(  # noqa: PLR0917  the fields of the message, in their order
    number: int, direction: Literal["in", "out"], peer: str, stage: str, body: bytes, view: View
) -> TranscriptEntry:
    printed = body[:PREFIX].hex()
    return TranscriptEntry(
        number=number, direction=direction, peer=peer, stage=stage, bytes=len(body), view=view, hex=printed
    )
