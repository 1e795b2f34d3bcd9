"""Analyzes batches (A): turns a batch into an estimate. A batch that does not add up is refused whole.

A sealed record that does not open, or holds no vector, is its client's fault alone: it counts as lost, and the others
are analyzed. So does a record's copy. Whether a record counts follows from the record alone: no other client, and no
shuffler with records of its own, can make it count as lost.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distrust.common.dp.mechanisms import Mechanism
from distrust.common.dp.mechanisms.families.base import StreamCounter
from distrust.common.errors import BadMessage, TooSmall
from distrust.common.modular import sum_rows, unpack, unpack_rows
from distrust.common.protocol.crypto.seal import checksum_of, sealed_size
from distrust.common.protocol.messages.batch import Batch, GroupedRecords, ModularSum, PermutedBits, Records
from distrust.common.protocol.messages.cohort import (
    AssignedRecords,
    Cohort,
    LabelledBits,
    Masking,
    Sealed,
    SealedRecords,
)
from distrust.common.randomness import Stream

OpenRecord = Callable[..., tuple[bytes, bytes]]
"""Opens a sealed record: returns its report id (16 bytes) and payload. Raises BadMessage.

A record of assigned actions opens at the place of its action only, the second argument.
"""

AnalyzerNoise = Callable[[NDArray[np.uint64], NDArray[np.int64]], Stream]
"""Return the stream of the analyzer's noise for a batch's totals mod m and its survivors (by action, or one count)."""

IMPOSSIBLE = 1e-9
"""Probability that noise which does not wrap carries a sum of honest clients outside its bounds."""


@dataclass(frozen=True, slots=True)
class Estimated:
    """A batch's estimate, and what it was computed from.

    sums    of the survivors' true values, in data units, by coordinate or by assigned action, shape (s,). Where a
            stream is counted they are over all its batches.
    own     this batch's own sums: `sums` where no stream is counted.
    totals  sums of the messages mod m, shape (dimension,), or by assigned action, shape (s, dimension).
    counts  survivors, shape (1,), or by assigned action, shape (s,).
    after   the stream's state after this batch; None where none is counted.
    """

    sums: NDArray[np.float64]
    own: NDArray[np.float64]
    totals: NDArray[np.uint64]
    counts: NDArray[np.int64]
    after: StreamCounter | None = None


def estimate(
    mechanism: Mechanism,
    totals: NDArray[np.uint64],
    counts: NDArray[np.int64],
    stream: Stream,
    before: StreamCounter | None = None,
) -> Estimated:
    """Return the estimate of a batch, `totals` and `counts` as in `Estimated`.

    stream  draws the noise of central mechanisms.
    before  the state of the batch's stream; None: no stream is counted.
    Raises  TooSmall with fewer survivors than the mechanism's `floor`, BadParameter after a stream's last batch.
    """
    if before is not None:
        after, released = before.add(totals, int(counts[0]), stream)
        return Estimated(released.prefix, released.batch, totals, counts, after)
    if totals.ndim > 1:
        own = mechanism.estimate_parts(totals, counts, stream)[:, 0]
    else:
        own = mechanism.estimate(totals, int(counts[0]), stream)
    return Estimated(own, own, totals, counts)


def analyze(  # noqa: PLR0917  a batch, and what opens it
    mechanism: Mechanism,
    cohort: Cohort,
    batch: Batch,
    noise_of: AnalyzerNoise,
    open_record: OpenRecord,
    before: StreamCounter | None = None,
) -> Estimated:
    """Return the estimate of a batch. For assigned actions the cohort's minimum counts all groups; one may be empty.

    noise_of  gives the same stream to the same totals, of a stream behind the same earlier batches only: their noise is
              in this batch's, too. Or the caller publishes one estimate of the cohort only.
    before    as of `estimate`. The caller keeps the new state only if it commits the estimate.
    Raises    BadMessage for a batch that does not add up or a sum that cannot be, TooSmall below the cohort's minimum.
    """
    check_count(cohort, batch)
    totals, counts = content_sums(mechanism, cohort, batch, open_record)
    found = estimate(mechanism, totals, counts, noise_of(totals, counts), before)
    # The batch's own leaf is looked at, not the prefix. A refused batch is replaced, and the nodes that it completed
    # are drawn again: their refusals would show earlier clients' sums, with noise that the ledger does not count.
    if before is None or mechanism.judged:
        check_possible(mechanism, found.own, np.broadcast_to(counts, found.own.shape))
    return found


def check_possible(mechanism: Mechanism, sums: NDArray[np.float64], counts: NDArray[np.int64]) -> None:
    """Refuse sums outside `possible`, which honest clients do not cause. Raises BadMessage, naming the coordinate.

    sums, counts  estimates by coordinate (by action if actions are assigned), and their survivors; both of shape (s,).

    False alarms  All coordinates together refuse honest clients with probability at most `IMPOSSIBLE` plus the
                  mechanism's `wrap`: a sum that wrapped around, or an escape of relaxed-secagg-shuffle, looks
                  impossible, too.
    Limits        A masked sum bounds one client's input by the modulus m = ng + 2τ + 1 only, which n honest clients and
                  their noise fill. If all n survive, every residue is possible and nothing is refused. If n' survive,
                  at most the share 1 - n'/n of the residues is refused. impossible-sums.md has the shares.
                  A tree's modulus has more room than one draw of noise fills, and more is refused. The server's own
                  noise is in a sum before it is decoded, and so in the number that a refusal shows.
    """
    lowest, highest = possible(mechanism, counts)
    outside = np.flatnonzero((sums < lowest) | (sums > highest))
    if outside.size:
        j = int(outside[0])
        allowed = f"{counts[j]} clients and the noise give {lowest[j]:.6g} to {highest[j]:.6g}"
        raise BadMessage(f"impossible sum: coordinate {j} is {sums[j]:.6g}, and {allowed}")


def possible(mechanism: Mechanism, counts: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the least and the largest sum of `counts` honest clients, each of shape (s,).

    [n·low, n·high], and on both sides the noise's quantile at `IMPOSSIBLE` over the number of coordinates.
    """
    room = {n: mechanism.error(max(1, n)).quantile(IMPOSSIBLE / len(counts)) for n in set(counts.tolist())}
    reach = np.array([room[n] for n in counts.tolist()]) + 1e-9 * counts * (mechanism.high - mechanism.low)
    return counts * mechanism.low - reach, counts * mechanism.high + reach


def check_count(cohort: Cohort, batch: Batch) -> None:
    """Refuse another cohort's batch, more survivors than clients, and too few survivors."""
    if batch.cohort != cohort.cohort:
        raise BadMessage(f"a batch of cohort {batch.cohort}, not of {cohort.cohort}")
    if batch.survivors > cohort.clients:
        raise BadMessage(f"survivors = {batch.survivors}: the cohort has {cohort.clients} clients")
    if batch.survivors < cohort.minimum:
        raise TooSmall(batch.survivors, cohort.minimum)


def content_sums(
    mechanism: Mechanism, cohort: Cohort, batch: Batch, open_record: OpenRecord
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return Σ of the survivors' messages mod m, for every kind of channel, and the survivors, as in `Estimated`.

    Raises BadMessage for a batch that does not add up, TooSmall for fewer records that count than the minimum.
    """
    content, channel = batch.content, cohort.channel
    if isinstance(channel, Masking) and isinstance(content, ModularSum):
        return unpack(content.body, channel.modulus, channel.dimension), np.array([batch.survivors])
    if isinstance(channel, LabelledBits) and isinstance(content, PermutedBits):
        return ones_by_label(content.body, channel, batch.survivors), np.array([batch.survivors])
    if isinstance(channel, Sealed) and isinstance(content, Records):
        rows = open_all(mechanism, channel, content, batch.survivors, open_record)
        totals, counts = sum_rows(rows, mechanism.modulus), np.array([len(rows)])
    elif isinstance(channel, AssignedRecords) and isinstance(content, GroupedRecords):
        groups = open_groups(mechanism, channel, content, batch.survivors, open_record)
        totals = np.stack([sum_rows(group, mechanism.modulus) for group in groups])
        counts = np.array([len(group) for group in groups])
    else:
        raise BadMessage(f"cohort {cohort.cohort}: a batch of kind {content.kind} in a {channel.kind} channel")
    survivors = int(counts.sum())
    if survivors < cohort.minimum:
        raise TooSmall(survivors, cohort.minimum, "records that open")
    return totals, counts


def open_all(
    mechanism: Mechanism, channel: Sealed, records: Records, survivors: int, open_record: OpenRecord
) -> NDArray[np.uint64]:
    """Return the vectors in those records that count, shape (records, dimension)."""
    cut = _cut(channel, records, records.count, survivors)
    return _rows(mechanism, _opened(cut, open_record))


def open_groups(
    mechanism: Mechanism,
    channel: AssignedRecords,
    records: GroupedRecords,
    survivors: int,
    open_record: OpenRecord,
) -> list[NDArray[np.uint64]]:
    """Return for each group the vectors in those of its records that count: they open at the group's action."""
    if len(records.counts) != len(channel.deal.times):
        raise BadMessage(f"{len(records.counts)} groups, and {len(channel.deal.times)} actions were assigned")
    if any(count > times for count, times in zip(records.counts, channel.deal.times, strict=True)):
        raise BadMessage("a group has more records than plays were assigned to its action")
    cut, end, groups = _cut(channel, records, sum(records.counts), survivors), 0, []
    for place, count in enumerate(records.counts):
        begin, end = end, end + count
        groups.append(_rows(mechanism, _opened(cut[begin:end], open_record, place)))
    return groups


def _cut(channel: SealedRecords, records: Records | GroupedRecords, count: int, survivors: int) -> list[bytes]:
    """Return the records one by one. Raises BadMessage unless they are those that the shuffler saw arrive."""
    size, body = sealed_size(channel.size), records.body
    if count != survivors or len(body) != survivors * size:
        received = f"{count} records in {len(body)} bytes"
        raise BadMessage(f"{received}, and {survivors} survivors of {size} bytes each must be there")
    cut = [body[at : at + size] for at in range(0, len(body), size)]
    if checksum_of(cut) != records.checksum:
        raise BadMessage("the checksum of the records does not match what the shuffler saw arrive")
    return cut


def _opened(records: Iterable[bytes], open_record: OpenRecord, *place: int) -> list[bytes]:
    """Return the payloads of the records that open, each record once."""
    payloads = []
    for record in dict.fromkeys(records):
        try:
            payloads.append(open_record(record, *place)[1])
        except BadMessage:  # a liar, or a record that was damaged
            continue
    return payloads


def _rows(mechanism: Mechanism, payloads: list[bytes]) -> NDArray[np.uint64]:
    """Return the vectors in payloads of one size, without those that are no vector below the modulus."""
    modulus, dimension = mechanism.modulus, mechanism.dimension
    try:
        return unpack_rows(b"".join(payloads), modulus, dimension)
    except BadMessage:
        if len(payloads) == 1:
            return np.empty((0, dimension), dtype=np.uint64)
        half = len(payloads) // 2  # few clients lie: most halves are whole
        return np.concatenate([_rows(mechanism, payloads[:half]), _rows(mechanism, payloads[half:])])


def ones_by_label(body: bytes, channel: LabelledBits, survivors: int) -> NDArray[np.uint64]:
    """Return the count of ones under each label, shape (labels,)."""
    bits = survivors * channel.width
    size = (bits + 7) // 8
    if len(body) != channel.labels * size:
        raise BadMessage(
            f"labelled bits in {len(body)} bytes, and {channel.labels} labels of {size} bytes must be there"
        )
    rows = np.frombuffer(body, dtype=np.uint8).reshape(channel.labels, size)
    if bits % 8 and (rows[:, -1] >> (bits % 8)).any():
        raise BadMessage("the bits of a label must end in zero bits")
    counts: NDArray[np.uint64] = np.bitwise_count(rows).sum(axis=1, dtype=np.uint64)
    return counts
