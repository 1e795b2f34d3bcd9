"""Dealt actions: a uniform order of the plays, and the records put back by action. Pure (FREE Algorithm 3)."""

import hashlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from common.crypto.claim import SECRET
from common.crypto.seal import REPORT_ID
from common.decisions import AssignedAction
from common.errors import BadParameter
from common.messages.batch import GroupedRecords
from common.messages.cohort import Cohort, Dealt
from common.randomness import Stream, UnsafeSeededStream
from shuffler.permute import permutation

_STORED = np.dtype("<u4")

Order = NDArray[np.int64]
"""Entry i is the play of slot i, shape (n,)."""


def order_stream(cohort: Cohort, fresh: Callable[[], Stream]) -> Stream:
    """A `fresh` one; the seed's in runs that are named unsafe, the same one as in process."""
    channel = cohort.channel
    if isinstance(channel, Dealt) and channel.noise_seed is not None:
        return UnsafeSeededStream(channel.noise_seed, cohort.run, cohort.cohort, "order")
    return fresh()


def dealt(deal: AssignedAction, stream: Stream) -> Order:
    """A uniform order of all the plays."""
    return permutation(deal.plays, stream)


def pack_order(order: Order) -> bytes:
    """Four bytes a slot, as the database keeps it."""
    return order.astype(_STORED).tobytes()


def unpack_order(raw: bytes) -> Order:
    """The same, back."""
    return np.frombuffer(raw, dtype=_STORED).astype(np.int64)


def check_deal(cohort: Cohort, channel: Dealt) -> None:
    """Raise BadParameter unless there is one play for each slot."""
    if channel.deal.plays != cohort.clients:
        raise BadParameter("deal", channel.deal.plays, f"its times must add up to clients = {cohort.clients}")


def grouped(reports: Sequence[tuple[int, bytes]], deal: AssignedAction, order: Order, stream: Stream) -> GroupedRecords:
    """(slot, report id ‖ sealed record ‖ secret) to the records alone, by action, each group in random order."""
    slots = np.array([slot for slot, _ in reports], dtype=np.int64)
    places = deal.places()[order[slots]]
    mixed = permutation(len(reports), stream)
    sequence = mixed[np.argsort(places[mixed], kind="stable")].tolist()
    return GroupedRecords(
        counts=np.bincount(places, minlength=len(deal.times)).tolist(),
        body=b"".join(reports[index][1][REPORT_ID:-SECRET] for index in sequence),
        checksum=checksum(body for _, body in reports),
    )


def checksum(reports: Iterable[bytes]) -> bytes:
    """XOR of SHA-256(report id) over reports that begin with theirs, 32 bytes."""
    ids = b"".join(hashlib.sha256(report[:REPORT_ID]).digest() for report in reports)
    mixed: NDArray[np.uint8] = np.bitwise_xor.reduce(np.frombuffer(ids, dtype=np.uint8).reshape(-1, 32), axis=0)
    return mixed.tobytes()
