"""From masked vectors and shares to the sum.

The survivors' self seeds and the lost clients' mask keys are rebuilt, and their masks taken away.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import numpy as np

from aggregator.sharing import Sharing
from common.crypto import mask
from common.crypto.binding import binding
from common.crypto.graph import Roster, masking
from common.crypto.share import SHARE, combine
from common.errors import BadMessage, BadShare, TooSmall
from common.messages.cohort import Cohort, Masking
from common.modular import Vector, add, packed_size, subtract, total, unpack_rows

_CHUNK = 1 << 19  # coordinates added at once: 4 MiB


def recover(  # noqa: PLR0917 - what four rounds left behind
    cohort: Cohort,
    roster: Roster,
    shared: Iterable[int],
    masked: Mapping[int, bytes],
    commitments: Mapping[int, bytes],
    answers: Mapping[int, bytes],
) -> Vector:
    """The survivors' vectors added modulo m, shape (dimension,).

    shared       the members of stage `masked`, as `settle_shared` gave them and clients were told.
    masked       the survivors' bodies. commitments   of everyone that shared. answers   bodies of stage `unmask`.
    Raises       TooSmall when too few survive or answer, BadShare when a rebuilt secret is not the one that was
                 committed to: never a wrong sum.
    """
    sum_ = sum_masked(cohort, masked.values())
    return unmask_total(Sharing(roster, shared), masked, sum_, commitments, answers)


def sum_masked(cohort: Cohort, bodies: Iterable[bytes]) -> Vector:
    """Packed masked vectors added modulo m, a few megabytes at a time: any number may pass through."""
    channel, iterator = masking(cohort), iter(bodies)
    sum_ = np.zeros(channel.dimension, dtype=np.uint64)
    rows = max(1, _CHUNK // channel.dimension)
    while chunk := list(islice(iterator, rows)):
        sum_ = add(sum_, _sum_chunk(channel, chunk), channel.modulus)
    return sum_


def unmask_total(
    sharing: Sharing,
    survivors: Iterable[int],
    masked_total: Vector,
    commitments: Mapping[int, bytes],
    answers: Mapping[int, bytes],
) -> Vector:
    """`masked_total`, the sum of the survivors' masked vectors, without its masks. Raises like `recover`."""
    cohort, alive = sharing.roster.cohort, frozenset(survivors)
    if not alive <= frozenset(sharing.shared):
        raise BadMessage("a survivor did not share its keys")
    if len(alive) < cohort.minimum:
        raise TooSmall(len(alive), cohort.minimum)
    channel = masking(cohort)
    m, d = channel.modulus, channel.dimension
    kept, lost = _split(_seeds(sharing, channel.threshold, answers), alive)
    sum_ = subtract(masked_total, mask.total(_self_masks(cohort, kept, commitments), m, d), m)
    for slot, seed in lost.items():
        plus, minus = _pair_masks(sharing, alive, slot, seed)
        sum_ = add(subtract(sum_, mask.total(plus, m, d), m), mask.total(minus, m, d), m)
    return sum_


def _sum_chunk(channel: Masking, bodies: list[bytes]) -> Vector:
    size = packed_size(channel.modulus, channel.dimension)
    if any(len(body) != size for body in bodies):
        raise BadMessage(f"a masked vector must have {size} bytes")
    return total(unpack_rows(b"".join(bodies), channel.modulus, channel.dimension), channel.modulus)


def _seeds(sharing: Sharing, threshold: int, answers: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
    """(slot, rebuilt secret) of everyone that shared, each from the first t shares in its neighbour order."""
    roster, shares = sharing.roster, _join_answers(sharing, answers)
    answered = roster.flags(answers)[:, np.newaxis] & sharing.near  # edges, seen from the one that answers
    place = (np.cumsum(answered.ravel()) - 1)[roster.reverse].reshape(answered.shape)
    usable = answered.ravel()[roster.reverse].reshape(answered.shape)[sharing.rows]
    _check_enough(sharing, usable.sum(axis=1), threshold)
    rows, columns = np.nonzero(usable & (np.cumsum(usable, axis=1) <= threshold))
    points = (columns + 1).reshape(-1, threshold).tolist()
    starts = (SHARE * place[sharing.rows[rows], columns]).reshape(-1, threshold).tolist()
    for slot, at, places in zip(sharing.shared, points, starts, strict=True):
        yield slot, _rebuild(slot, roster.cohort, tuple(at), [shares[i : i + SHARE] for i in places])


def _join_answers(sharing: Sharing, answers: Mapping[int, bytes]) -> bytes:
    """The answers' shares in the order of the graph's edges."""
    slots = sorted(answers)
    if not set(slots) <= set(sharing.shared):
        raise BadMessage("an answer to stage unmask comes from a client that did not share")
    for slot in slots:
        if len(answers[slot]) != SHARE * sharing.shares_of(slot):
            raise BadMessage(
                f"slot {slot} answered {len(answers[slot])} bytes, and has {sharing.shares_of(slot)} shares"
            )
    return b"".join([answers[slot] for slot in slots])


def _check_enough(sharing: Sharing, counts: np.ndarray[tuple[int, ...], np.dtype[np.int64]], threshold: int) -> None:
    if counts.size and counts.min() < threshold:
        worst = int(counts.argmin())
        raise TooSmall(int(counts[worst]), threshold, f"shares of slot {sharing.shared[worst]}")


def _rebuild(slot: int, cohort: Cohort, points: tuple[int, ...], shares: list[bytes]) -> bytes:
    try:
        return combine(points, shares)
    except BadShare as error:
        raise _bad_share(slot, cohort) from error


def _split(seeds: Iterable[tuple[int, bytes]], alive: frozenset[int]) -> tuple[dict[int, bytes], dict[int, bytes]]:
    kept: dict[int, bytes] = {}
    lost: dict[int, bytes] = {}
    for slot, seed in seeds:
        (kept if slot in alive else lost)[slot] = seed
    return kept, lost


def _self_masks(cohort: Cohort, seeds: Mapping[int, bytes], commitments: Mapping[int, bytes]) -> Iterator[bytes]:
    """The keys of the survivors' self masks, each seed checked against its commitment."""
    names = binding(cohort)
    for slot, seed in seeds.items():
        if names.commitment(seed, slot) != commitments[slot]:
            raise _bad_share(slot, cohort)
        yield names.self_mask(seed, slot)


def _pair_masks(sharing: Sharing, alive: frozenset[int], slot: int, seed: bytes) -> tuple[list[bytes], list[bytes]]:
    """The keys of the masks that survivors added, and of those that they subtracted, for one lost client."""
    roster = sharing.roster
    names = binding(roster.cohort)
    pair = names.mask_pair(seed)
    if pair.public_key().public_bytes_raw() != roster.mask_key(slot):
        raise _bad_share(slot, roster.cohort)
    near = [v for v in roster.neighbours(slot) if v in alive]
    keys = [(v, names.pair_mask(pair, roster.mask_key(v), slot, v)) for v in near]
    return [key for v, key in keys if v < slot], [key for v, key in keys if v > slot]


def _bad_share(slot: int, cohort: Cohort) -> BadShare:
    return BadShare(f"a share of slot {slot} in cohort {cohort.cohort} is false", slot=slot, cohort=cohort.cohort)
