"""What the server saw of one cohort, in order: the cohort it opened, tickets, the batch, and what it made of it."""

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
from distrust.common.messages.cohort import Cohort, Dealt, LabelledBits, Sealed, SealedRecords
from distrust.common.messages.status import Statement, Transcript, TranscriptEntry
from distrust.common.modular import unpack
from distrust.server.analyzer import ones
from distrust.server.learner.ledger import SEEDED, answered
from distrust.server.learner.outcome import Released
from distrust.server.store import GrantRow, Store

View = dict[str, str | int | float | bool | list[int] | list[str]]
MOST_VALUES = 1000  # decoded values in one view
PREFIX = 64  # bytes shown in hex
SIGNATURE = 64  # bytes


def page(
    store: Store, key: X25519PrivateKey, cohort: Cohort, mechanism: Mechanism, *, seeded: bool, after: int, limit: int
) -> Transcript:
    """Messages `after` … `after` + `limit` - 1 of the cohort; `seeded` when the run's noise comes from a seed."""
    makers = _makers(store, key, cohort, mechanism, seeded=seeded)
    messages = [make(number) for number, make in list(enumerate(makers))[after : after + limit]]
    following = after + limit if after + limit < len(makers) else None
    return Transcript(party="server", cohort=cohort.cohort, total=len(makers), next=following, messages=messages)


def _makers(
    store: Store, key: X25519PrivateKey, cohort: Cohort, mechanism: Mechanism, *, seeded: bool
) -> list[Callable[[int], TranscriptEntry]]:
    """One maker a message, so that only the page that is asked for is decoded."""
    makers: list[Callable[[int], TranscriptEntry]] = [lambda number: _opening(number, cohort)]
    makers += [partial(_tickets, row) for row in store.cohort_grants(cohort.cohort)]
    makers += [partial(_statement, one) for one in store.statements(cohort.cohort)]
    answer, outcome = store.batch(cohort.cohort), store.outcome(cohort.cohort)
    if answer is not None and answer.batch is not None:
        batch = answer.batch
        makers.append(lambda number: _batch(number, cohort, batch, mechanism, key))
    if isinstance(outcome, Released):
        makers.append(lambda number: _estimate(number, outcome, mechanism, seeded=seeded))
    elif outcome is not None:
        makers.append(lambda number: _seen(number, "in", cohort.via, "aborted", b"", {"reason": outcome.reason}))
    return makers


def _opening(number: int, cohort: Cohort) -> TranscriptEntry:
    view: View = {"round": cohort.round, "clients": cohort.clients, "minimum": cohort.minimum}
    told = cohort.channel.model_dump(mode="json", exclude={"server_key", "deal", "noise_seed"})
    view |= {name: value for name, value in told.items() if value is not None}
    if isinstance(cohort.channel, Dealt):
        deal = cohort.channel.deal
        view |= {"actions": deal.actions[:MOST_VALUES], "times": deal.times[:MOST_VALUES]}
    return _seen(number, "out", cohort.via, "cohort", cohort.model_dump_json().encode(), view)


def _tickets(row: GrantRow, number: int) -> TranscriptEntry:
    """Signatures are not shown: a ticket that was not used yet would still admit somebody."""
    view: View = {"tickets": row.count, "first": row.first, "last": row.first + row.count - 1}
    size = SIGNATURE * row.count
    return TranscriptEntry(number=number, direction="out", peer="fleet", stage="tickets", bytes=size, view=view, hex="")


def _statement(statement: Statement, number: int) -> TranscriptEntry:
    """The server cannot read more from a digest than whether two are equal."""
    view: View = {"statement": statement.digest.hex()}
    return _seen(number, "in", "aggregator", statement.stage, statement.digest, view)


def _estimate(number: int, outcome: Released, mechanism: Mechanism, *, seeded: bool) -> TranscriptEntry:
    view: View = {"survivors": outcome.survivors, "sum": [f"{value:.6g}" for value in outcome.sum]}
    view |= {} if outcome.counts is None else {"by_action": outcome.counts[:MOST_VALUES]}
    view["privacy"] = SEEDED if seeded else answered(mechanism, outcome.survivors)
    return _seen(number, "out", "everyone", "estimate", outcome.model_dump_json().encode(), view)


def _batch(number: int, cohort: Cohort, batch: Batch, mechanism: Mechanism, key: X25519PrivateKey) -> TranscriptEntry:
    view: View = {"survivors": batch.survivors, "kind": batch.content.kind}
    try:
        view |= _content(cohort, batch, mechanism, key)
    except BadMessage as error:
        view |= {"refused": error.detail}
    return _seen(number, "in", cohort.via, "batch", batch.content.body, view)


def _content(cohort: Cohort, batch: Batch, mechanism: Mechanism, key: X25519PrivateKey) -> View:
    """What this server can read in a batch: a sum, unlinked records in random order, or counts of ones."""
    content, channel = batch.content, cohort.channel
    if isinstance(content, ModularSum):
        total = unpack(content.body, mechanism.modulus, mechanism.dimension)
        return {"modulus": mechanism.modulus, "sum": total[:MOST_VALUES].tolist()}
    if isinstance(content, PermutedBits) and isinstance(channel, LabelledBits):
        counts = ones(content.body, channel, batch.survivors)[:MOST_VALUES].tolist()
        return {"bits": batch.survivors * channel.width, "ones": counts}
    if isinstance(content, Records) and isinstance(channel, Sealed):
        return {"records": content.count, "values": _values(cohort, channel, content.body, mechanism, key)}
    if isinstance(content, GroupedRecords) and isinstance(channel, Dealt):
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
    """The first records' values, in the shuffler's random order; of dealt actions group after group."""
    size = sealed_size(channel.size)
    shown = max(1, MOST_VALUES // mechanism.dimension)
    ends = list(accumulate(groups))
    values: list[int] = []
    for number, at in enumerate(range(0, min(len(body), shown * size), size)):
        place = bisect_right(ends, number) if ends else None
        _, payload = open_record(key, cohort, body[at : at + size], place)
        values += unpack(payload, mechanism.modulus, mechanism.dimension)[:MOST_VALUES].tolist()
    return values


def _seen(  # noqa: PLR0917  the fields of the message, in their order
    number: int, direction: Literal["in", "out"], peer: str, stage: str, body: bytes, view: View
) -> TranscriptEntry:
    shown = body[:PREFIX].hex()
    return TranscriptEntry(
        number=number, direction=direction, peer=peer, stage=stage, bytes=len(body), view=view, hex=shown
    )
