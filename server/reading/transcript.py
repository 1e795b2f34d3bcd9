"""Shows what the server stored of a cohort: its messages, its state and its round, without the run's learner.

The service answers with it, and `distrust inspect` reads a stopped server's database with it.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pydantic import TypeAdapter

from distrust.common.bandit.decisions import Decision
from distrust.common.dp.accounting.guarantee import ShownGuarantee
from distrust.common.dp.mechanisms import AnyMechanism, Mechanism
from distrust.common.errors import BadMessage, RunFailed, WrongCohort
from distrust.common.protocol.channels.base import BatchReader, View
from distrust.common.protocol.crypto.receipts import RECEIPT_SECRET, record_list
from distrust.common.protocol.crypto.seal import open_record
from distrust.common.protocol.messages.batch import Batch
from distrust.common.protocol.messages.cohort import SIGNATURE, Cohort
from distrust.common.protocol.messages.status import (
    EVERY,
    CohortState,
    CohortView,
    Statement,
    Transcript,
    TranscriptEntry,
    entry,
)
from distrust.common.protocol.run.config import RunConfig
from distrust.common.wire import Via
from distrust.server.learner.rounds import (
    SEEDED,
    CohortPlan,
    LostCohort,
    ReleasedCohort,
    RoundRecord,
    promise_to_survivors,
    round_guarantee,
)
from distrust.server.policies.base import Ask
from distrust.server.storage.rows import CohortRow, GrantRow, RunRow, UnreadRun
from distrust.server.storage.store import Store

SealKey = X25519PrivateKey | None
"""The run's key, which opens sealed records; None once it is destroyed, or where its file may not be read."""

MOST_VALUES = 1000  # decoded values in one view
MOST_HASHES = 64  # hashes of keys in one view: a page of 1000 views stays below 5 MB
HASH = 32  # bytes of a hash of a client's keys


_decisions: TypeAdapter[Decision] = TypeAdapter(Decision)
_mechanisms: TypeAdapter[Mechanism] = TypeAdapter(AnyMechanism)


@dataclass(frozen=True, slots=True)
class StoredRound:
    """A round of a run as the store has it.

    intermediary  of its cohorts.
    guarantee     the weakest of its cohorts', as in a `RoundReport`.
    cohorts       those that were opened, attempt after attempt; a cohort that was only planned is not stored.
    """

    number: int
    intermediary: Via
    guarantee: ShownGuarantee
    cohorts: list[CohortView]


def stored_run(store: Store, run: str) -> RunRow:
    """Return a run as it is stored. Raises WrongCohort for an unknown run, RunFailed for one that cannot be read."""
    for row in store.runs():
        if isinstance(row, UnreadRun) and row.run == run:
            raise RunFailed(f"run {run} failed: its stored configuration is refused: {row.why}")
        if isinstance(row, RunRow) and row.config.run == run:
            return row
    raise WrongCohort(f"run {run} is not known here")


def stored_round(store: Store, config: RunConfig, number: int) -> StoredRound:
    """Return a round by the terms of its cohorts: no policy is asked, and nothing is planned again.

    Raises WrongCohort for a round without an open or ended cohort.
    """
    rows = store.cohorts(config.run, number)
    if not rows:
        raise WrongCohort(f"round {number} of run {config.run} has not begun")
    messages = [stored_cohort(store, config.run, cohort) for cohort in rows]
    plans = sorted(map(_plan, messages), key=lambda plan: (plan.attempt, plan.arm or 0))
    ended = ((plan.arm, store.outcome(plan.cohort)) for plan in plans)
    decision = _decisions.validate_json(json.dumps(json.loads(messages[0].terms)["decision"]))
    record = RoundRecord(
        number,
        Ask(number, (), decision),
        {plan.clients: plan.mechanism for plan in plans},
        {plan.clients: plan.minimum for plan in plans},
        tuple(plans),
        {arm: outcome for arm, outcome in ended if isinstance(outcome, ReleasedCohort)},
    )
    views = [cohort_view(record, plan, rows[plan.cohort], store) for plan in plans]
    return StoredRound(number, messages[0].via, round_guarantee(config, record), views)


def stored_cohort(store: Store, run: str, cohort: str) -> Cohort:
    """Return a cohort of a run as it was opened. Raises WrongCohort."""
    message = store.cohort_message(cohort)
    if message is None or message.run != run:
        raise WrongCohort(f"no cohort {cohort} here")
    return message


def stored_sample(store: Store, key: SealKey, config: RunConfig, cohort: str, each: int) -> Transcript:
    """Return the first `each` of each stage and direction of the server's transcript, by the cohort's own terms."""
    message, seeded = stored_cohort(store, config.run, cohort), config.unsafe is not None
    mechanism = _plan(message).mechanism
    return cohort_transcript(store, key, message, mechanism, seeded=seeded, after=0, limit=EVERY, each=each)


def _plan(message: Cohort) -> CohortPlan:
    """Return the plan of a cohort that was opened. Its name is RUN.ROUND.ARM.ATTEMPT."""
    terms = json.loads(message.terms)
    return CohortPlan(
        cohort=message.cohort,
        arm=terms["arm"],
        clients=message.clients,
        attempt=int(message.cohort.rpartition(".")[2]),
        minimum=message.minimum,
        mechanism=_mechanisms.validate_json(json.dumps(terms["mechanism"])),
    )


def cohort_view(record: RoundRecord, plan: CohortPlan, row: CohortRow | None, store: Store) -> CohortView:
    """Return one cohort of a round. row: None while it is only planned."""
    state: CohortState = "planned" if row is None else row.state
    lost = store.outcome(plan.cohort) if state == "aborted" else None
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
        reason=lost.reason if isinstance(lost, LostCohort) else None,
    )


def cohort_transcript(
    store: Store,
    key: SealKey,
    cohort: Cohort,
    mechanism: Mechanism,
    *,
    seeded: bool,
    after: int,
    limit: int,
    each: int | None = None,
) -> Transcript:
    """Return the server's transcript of one cohort, in order: at most `limit` messages, from position `after` on.

    The messages are the cohort that it opened, tickets and the hashes that were asked for with, statements, the batch,
    of a crowd the list of records and the clients' receipts, and the estimate or the loss.

    seeded  whether the run's noise comes from a seed.
    each    the first so many of each stage and direction alone; None: every message.
    """
    makers = _makers(store, key, cohort, mechanism, seeded=seeded)
    chosen, before = list[int](), Counter[str]()
    for number, (stage, _) in enumerate(makers):  # of one stage and one direction
        before[stage] += 1
        if number >= after and (each is None or before[stage] <= each):
            chosen.append(number)
    messages = [makers[number][1]().model_copy(update={"number": number}) for number in chosen[:limit]]
    following = chosen[limit] if len(chosen) > limit else None
    scrubbed = store.scrubbed(cohort.cohort)
    return Transcript(
        party="server", cohort=cohort.cohort, total=len(makers), next=following, messages=messages, scrubbed=scrubbed
    )


def _makers(
    store: Store, key: SealKey, cohort: Cohort, mechanism: Mechanism, *, seeded: bool
) -> list[tuple[str, Callable[[], TranscriptEntry]]]:
    """Return each message's kind, by stage and direction, and a function that makes it when it is requested."""
    makers: list[tuple[str, Callable[[], TranscriptEntry]]] = [("cohort", lambda: _opening(cohort))]
    for row in store.cohort_grants(cohort.cohort):
        makers += [("keys", partial(_key_hashes, row))] if row.key_hashes else []
        makers.append(("tickets", partial(_tickets, row)))
    makers += [(statement.stage, partial(_statement, statement)) for statement in store.statements(cohort.cohort)]
    answer, outcome = store.batch(cohort.cohort), store.outcome(cohort.cohort)
    if answer is not None and answer.batch is not None:
        batch = answer.batch
        makers.append(("batch", lambda: _batch(cohort, batch, mechanism, key)))
        if cohort.receipts:
            said = store.receipts(cohort.cohort)
            makers.append(("list", lambda: _list(cohort, batch)))
            makers += [("receipts", lambda: _receipts(said))] if said else []
    if isinstance(outcome, ReleasedCohort):
        makers.append(("estimate", lambda: _estimate(outcome, mechanism, seeded=seeded)))
    elif outcome is not None:
        loss: View = {"reason": outcome.reason}
        makers.append(("aborted", lambda: entry("in", cohort.via, "aborted", b"", loss)))
    return makers


def _opening(cohort: Cohort) -> TranscriptEntry:
    view: View = {"round": cohort.round, "clients": cohort.clients, "minimum": cohort.minimum}
    view |= cohort.channel.opening_view(MOST_VALUES)
    return entry("out", cohort.via, "cohort", cohort.model_dump_json().encode(), view)


def _tickets(row: GrantRow) -> TranscriptEntry:
    """Return an entry of granted slots, without signatures.

    A ticket that was not used yet would still admit a client.
    """
    view: View = {"tickets": row.count, "first": row.first, "last": row.first + row.count - 1}
    size = SIGNATURE * row.count
    return TranscriptEntry(number=0, direction="out", peer="fleet", stage="tickets", bytes=size, view=view, hex="")


def _key_hashes(row: GrantRow) -> TranscriptEntry:
    """Return an entry of the hashes of clients' keys, slot by slot, which came with a request for tickets."""
    hashes = [row.key_hashes[at : at + HASH].hex() for at in range(0, len(row.key_hashes), HASH)]
    view: View = {"first": row.first, "last": row.first + row.count - 1, "key_hashes": hashes[:MOST_HASHES]}
    return entry("in", "fleet", "keys", row.key_hashes, view)


def _list(cohort: Cohort, batch: Batch) -> TranscriptEntry:
    view: View = {"records": batch.survivors}
    return entry("out", "each client", "receipts", record_list(cohort, batch), view)


def _receipts(said: dict[int, bool]) -> TranscriptEntry:
    """Return an entry of what clients said of their records, without the secrets that they proved it with."""
    absent = sorted(slot for slot, present in said.items() if not present)
    view: View = {"present": len(said) - len(absent), "absent": absent[:MOST_VALUES]}
    size = (RECEIPT_SECRET + 1) * len(said)
    return TranscriptEntry(number=0, direction="in", peer="fleet", stage="receipts", bytes=size, view=view, hex="")


def _statement(statement: Statement) -> TranscriptEntry:
    """Return an entry of a statement. The server can only tell whether two digests are equal."""
    view: View = {"statement": statement.digest.hex()}
    return entry("in", "aggregator", statement.stage, statement.digest, view)


def _estimate(outcome: ReleasedCohort, mechanism: Mechanism, *, seeded: bool) -> TranscriptEntry:
    view: View = {"survivors": outcome.survivors, "sum": [f"{value:.6g}" for value in outcome.sum]}
    view |= {} if outcome.counts is None else {"by_action": outcome.counts[:MOST_VALUES]}
    view["privacy"] = SEEDED if seeded else promise_to_survivors(mechanism, outcome.survivors)
    return entry("out", "everyone", "estimate", outcome.model_dump_json().encode(), view)


def _batch(cohort: Cohort, batch: Batch, mechanism: Mechanism, key: SealKey) -> TranscriptEntry:
    view: View = {"survivors": batch.survivors, "kind": batch.content.kind}
    try:
        opener = None if key is None else partial(open_record, key, cohort)
        reader = BatchReader(mechanism.modulus, mechanism.dimension, opener)
        view |= cohort.channel.opened_view(batch.content, batch.survivors, reader, MOST_VALUES)
    except BadMessage as error:
        view |= {"refused": error.detail}
    return entry("in", cohort.via, "batch", batch.content.body, view)
