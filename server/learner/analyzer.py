"""Analyzes batches (A): turns a batch into an estimate. A batch that does not add up is refused whole.

A sealed record that does not open, or holds no vector, is its client's fault alone: it counts as lost, and the others
are analyzed. So does a record's copy. Whether a record counts follows from the record alone: no other client, and no
shuffler with records of its own, can make it count as lost.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distrust.common.dp.mechanisms import Mechanism
from distrust.common.dp.mechanisms.families.base import StreamCounter
from distrust.common.errors import BadMessage, TooSmall
from distrust.common.protocol.channels.base import BatchReader, OpenRecord
from distrust.common.protocol.messages.batch import Batch
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.randomness import Stream

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
    reader = BatchReader(mechanism.modulus, mechanism.dimension, open_record)
    groups = cohort.channel.open(batch.content, batch.survivors, reader)
    counts = np.array([group.clients for group in groups])
    if counts.sum() < cohort.minimum:
        raise TooSmall(int(counts.sum()), cohort.minimum, "records that open")
    totals = np.stack([group.total(mechanism.modulus) for group in groups])
    return totals if cohort.channel.assigns else totals[0], counts
