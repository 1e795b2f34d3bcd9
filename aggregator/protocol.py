"""Checks, routes and refuses clients' messages in the aggregator's five stages of secure aggregation.

No HTTP, no database, no clear vector. Bonawitz et al. 2017 with the graph of Bell et al. 2020; which shares count is
decided in `aggregator.confirmation`, the sum is in `aggregator.recovery`.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from distrust.aggregator.confirmation import Sharing, Verdict, judge_shares, name_liars, tell_liars
from distrust.common.errors import BadMessage, TooSmall
from distrust.common.modular import unpack
from distrust.common.protocol.crypto.context import masking
from distrust.common.protocol.crypto.graph import KEYS_SIZE, Roster, members_to_bitmap
from distrust.common.protocol.crypto.keys import KEY, load_public
from distrust.common.protocol.crypto.parameters import densest_loss
from distrust.common.protocol.crypto.seal import BOX
from distrust.common.protocol.crypto.share import MISSING, PRIME, SHARE_SIZE
from distrust.common.protocol.messages.cohort import Cohort

COMMITMENT = 32
"""Bytes of a commitment, at the start of a body of stage `shares`."""


def min_clients(cohort: Cohort) -> int:
    """Return the number of clients below which no stage goes on: the minimum, and t neighbours around one client."""
    return max(cohort.minimum, masking(cohort).threshold + 1)


def check_keys(body: bytes) -> None:
    """Check a body of stage `keys`: two X25519 public keys of large order. Raises BadMessage."""
    _check_size("keys", body, KEYS_SIZE)
    load_public(body[:KEY])
    load_public(body[KEY:])


def check_shares(roster: Roster, slot: int, body: bytes) -> None:
    """Check a body of stage `shares`: a commitment and one box for each neighbour. Raises BadMessage."""
    _check_member(roster, slot)
    _check_size("shares", body, COMMITMENT + BOX * roster.degree)


def check_masked(cohort: Cohort, body: bytes) -> None:
    """Check a body of stage `masked`: `dimension` packed values below the modulus. Raises BadMessage."""
    channel = masking(cohort)
    unpack(body, channel.modulus, channel.dimension)


def check_confirm(sharing: Sharing, slot: int, body: bytes) -> None:
    """Check a body of stage `confirm`: t coefficients, an element or 0xff for each neighbour that shared.

    Raises BadMessage.
    """
    _check_member(sharing.roster, slot)
    own = SHARE_SIZE * masking(sharing.roster.cohort).threshold
    _check_size("confirm", body, own + SHARE_SIZE * sharing.shares_of(slot))
    _check_elements(body[:own], "a coefficient")
    _check_elements(body[own:], "a share", or_missing=True)


def check_unmask(sharing: Sharing, slot: int, body: bytes) -> None:
    """Check a body of stage `unmask`: an element or 0xff for each neighbour among the members. Raises BadMessage."""
    _check_member(sharing.roster, slot)
    _check_size("unmask", body, SHARE_SIZE * sharing.shares_of(slot))
    _check_elements(body, "a share", or_missing=True)


def build_roster(cohort: Cohort, keys: Mapping[int, bytes]) -> Roster:
    """Return the roster of the clients that sent keys. Raises TooSmall."""
    _check_count(cohort, len(keys), "members")
    bitmap = members_to_bitmap(keys, cohort.clients)
    return Roster(cohort, bitmap, b"".join(keys[slot] for slot in sorted(keys)))


def settle_shared(roster: Roster, shared: Iterable[int]) -> tuple[int, ...]:
    """Return the members of stage `confirm`, ascending: clients that shared, with t neighbours that did.

    The secrets of others could not be rebuilt, so they are left out before a client masks with them. Raises TooSmall.
    """
    t = masking(roster.cohort).threshold
    flags = roster.flags(shared)
    while (weak := flags & (flags[roster.table].sum(axis=1) < t)).any():
        flags = flags & ~weak
    members = roster.slots[flags].tolist()
    _check_count(roster.cohort, len(members), "clients that shared")
    return tuple(members)


def route(sharing: Sharing, bodies: Mapping[int, bytes]) -> dict[int, bytes]:
    """Return the inbox of each client that shared: the boxes of its neighbours that shared, in neighbour order.

    bodies   bodies of stage `shares` by slot; those of clients outside `sharing` are not looked at.
    """
    boxes = np.zeros((*sharing.near.shape, BOX), dtype=np.uint8)
    edges = sharing.roster.reverse.reshape(sharing.near.shape)
    rows = list(zip(sharing.members, sharing.rows.tolist(), strict=True))
    for slot, row in rows:
        boxes[row] = np.frombuffer(bodies[slot], dtype=np.uint8, offset=COMMITMENT).reshape(-1, BOX)
    by_edge = boxes.reshape(-1, BOX)
    return {slot: by_edge[edges[row, sharing.near[row]]].tobytes() for slot, row in rows}


def close_confirm(sharing: Sharing, bodies: Mapping[int, bytes]) -> Verdict:
    """Close stage `confirm`. Return the members of stage `masked`, and which shares count.

    sharing   the clients that shared. bodies   of stage `confirm`, by slot.
    Raises    TooSmall, with the slots of those that lied, where too few clients' shares were confirmed.
    """
    verdict = judge_shares(sharing, bodies)
    liars = tell_liars(sharing, name_liars(sharing, verdict.disputed), verdict.disputed)
    _check_count(sharing.roster.cohort, len(verdict.sharing.members), "clients whose shares were confirmed", liars)
    return verdict


def check_survivors(sharing: Sharing, survivors: Iterable[int]) -> None:
    """Check the survivors as clients do before they unmask. Raises TooSmall.

    There must be enough survivors, t of them around every member, and at most w lost clients in k/2 consecutive places
    of the ring.
    """
    roster, cohort = sharing.roster, sharing.roster.cohort
    flags, channel = roster.flags(survivors) & sharing.flags, masking(cohort)
    _check_count(cohort, int(flags.sum()), "survivors")
    around = roster.around(flags)[sharing.rows]
    worst = int(around.argmin())
    if around[worst] < channel.threshold:
        raise TooSmall(int(around[worst]), channel.threshold, f"survivors around slot {sharing.members[worst]}")
    lost = roster.densest(~flags)
    most = densest_loss(cohort.clients, cohort.clients - cohort.minimum, channel.neighbours)
    if lost > most:
        half = channel.neighbours // 2
        raise TooSmall(half - lost, half - most, f"survivors in {half} consecutive places of the ring")


def _check_member(roster: Roster, slot: int) -> None:
    if slot not in roster:
        raise BadMessage(f"slot {slot} sent no keys and takes no part in cohort {roster.cohort.cohort}")


def _check_elements(body: bytes, what: str, *, or_missing: bool = False) -> None:
    top = PRIME >> 8 * (SHARE_SIZE - 1)
    for start in [SHARE_SIZE * i for i, first in enumerate(body[::SHARE_SIZE]) if first > top]:
        if not or_missing or body[start : start + SHARE_SIZE] != MISSING:
            raise BadMessage(f"{what} must be below 2¹³⁰ - 5")


def _check_size(stage: str, body: bytes, size: int) -> None:
    if len(body) != size:
        raise BadMessage(f"a body of stage {stage} must have {size} bytes here, and this one has {len(body)}")


def _check_count(cohort: Cohort, got: int, what: str, liars: str = "") -> None:
    if got < min_clients(cohort):
        raise TooSmall(got, min_clients(cohort), what, liars)
