"""Rebuilds the secrets behind the masks from shares, takes the masks off, and so gets the sum.

The survivors' self seeds and the lost clients' mask key pairs are rebuilt, although some shares may be false:

1. The shares of most secrets lie on one polynomial. The first t of them give the secret.
2. Where they do not, decoding finds the polynomial of degree t - 1 that all but (shares - t)/2 lie on.
3. Clients that are proven to lie are left out, and secrets that could not be decoded are tried again without them.
4. At last some random sets of t shares are tried.

A secret counts only if it fits its commitment, or its public key. So a false share never makes a wrong sum.
"""

import secrets
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from distrust.aggregator.confirmation import Flags, Verdict, name_liars, tell_liars, value_at
from distrust.aggregator.decoding import Parity, decode, interpolate
from distrust.common.errors import BadMessage, BadShare, TooSmall
from distrust.common.modular import Vector, add, subtract, sum_rows, unpack_rows
from distrust.common.protocol.crypto.context import masking
from distrust.common.protocol.crypto.keys import binding, pair_from_seed
from distrust.common.protocol.crypto.mask import sum_masks
from distrust.common.protocol.crypto.parameters import liars_near
from distrust.common.protocol.crypto.share import PRIME, SEED, coefficients
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.randomness import wipe

TRIES = 300
"""Sets of t shares that are tried for one secret that cannot be decoded: about 0.2 ms each."""

_CHUNK = 1 << 19  # coordinates added at once: 4 MiB


@dataclass(frozen=True, slots=True)
class _Secret:
    """One client's usable shares: columns (neighbours) ascending, and values."""

    slot: int
    row: int
    columns: tuple[int, ...]
    values: list[int]

    def without(self, left_out: Sequence[bool]) -> "_Secret":
        """Return the secret without the shares of some neighbours, flagged by column."""
        kept = [(c, value) for c, value in zip(self.columns, self.values, strict=True) if not left_out[c]]
        return _Secret(self.slot, self.row, tuple(c for c, _ in kept), [value for _, value in kept])

    @property
    def points(self) -> tuple[int, ...]:
        return tuple(c + 1 for c in self.columns)


class Rebuilding:
    """Rebuilds the secrets of one cohort's members.

    alive   the survivors' slots. commitments, answers   by slot; answers are the bodies of stage `unmask`.
    seeds   self seeds of survivors by slot, once they are rebuilt; `pairs` mask key pairs of lost clients.
    """

    def __init__(
        self, verdict: Verdict, alive: frozenset[int], commitments: Mapping[int, bytes], answers: Mapping[int, bytes]
    ) -> None:
        self._verdict, self._alive, self._commitments = verdict, alive, commitments
        self._sharing, self._roster = verdict.sharing, verdict.sharing.roster
        self._cohort, channel = self._roster.cohort, masking(self._roster.cohort)
        self._names, self._threshold = binding(self._cohort), channel.threshold
        lost = self._cohort.clients - self._cohort.minimum
        self._liars_near = liars_near(self._cohort.clients, lost, channel.neighbours, channel.threshold)
        self._entries = self._sharing.entries(answers)
        self._parity = Parity(self._threshold, secrets.randbelow(PRIME))
        self._disputed = verdict.disputed.copy()
        self._proven = np.zeros(len(self._roster), dtype=np.bool_)
        self.seeds: dict[int, bytearray] = {}
        self.pairs: dict[int, X25519PrivateKey] = {}

    def run(self) -> tuple[tuple[int, ...], int]:
        """Rebuild all secrets. Return the slots that provably lied, and how many disputes they do not explain.

        Raises TooSmall for fewer than t shares, BadShare for a secret that cannot be rebuilt.
        """
        rows = zip(self._sharing.members, self._sharing.rows.tolist(), strict=True)
        readable = (self._read(slot, row) for slot, row in rows)
        pending = [secret for secret in readable if not self._all_agree(secret)]
        while pending:
            named = self._named()
            left = [secret for secret in pending if not self._decode(secret)]
            if len(left) == len(pending) and np.array_equal(named, self._named()):
                left = [secret for secret in pending if not self._try_sets(secret)]
                if len(left) == len(pending):
                    raise self._cannot_be_rebuilt(pending[0])
            pending = left
        named = self._named()
        open_pairs = self._disputed & ~named[:, np.newaxis] & ~named[self._roster.table]
        return tuple(self._roster.slots[named].tolist()), int(open_pairs.sum())

    def _read(self, slot: int, row: int) -> _Secret:
        """Return the confirmed shares of one client. A neighbour that now contradicts its confirmation has lied."""
        columns, values = self._entries.of(row)
        trusted, opened = self._verdict.trusted[row], self._verdict.opened[row]
        usable = [(c, v) for c, v in zip(columns, values, strict=True) if trusted[c] and v < PRIME]
        if len(usable) < len(columns):
            liars = [c for c, v in zip(columns, values, strict=True) if (v < PRIME) != opened[c]]
            self._proven[self._roster.table[row, liars]] = True
        confirmed = int(trusted[columns].sum())
        if confirmed < self._threshold:
            raise TooSmall(confirmed, self._threshold, f"shares of slot {slot}", self._liars())
        return _Secret(slot, row, tuple(c for c, _ in usable), [v for _, v in usable])

    def _all_agree(self, secret: _Secret) -> bool:
        """Return whether all shares lie on one polynomial and give the secret committed to. Keep the secret then."""
        t, points = self._threshold, secret.points
        if len(points) < t or not self._parity.holds(points, secret.values):
            return False
        weights = coefficients(points[:t])
        constant = sum(a * b for a, b in zip(weights, secret.values, strict=False)) % PRIME
        return self._take(secret, constant) or self._dealt_falsely(secret, len(points))

    def _decode(self, secret: _Secret) -> bool:
        """Return whether most shares of neighbours that are not named give the secret committed to.

        Keep the secret then.
        """
        usable = secret.without(self._named()[self._roster.table[secret.row]].tolist())
        if len(usable.columns) < len(secret.columns) and self._all_agree(usable):
            return True
        polynomial = decode(usable.points, usable.values, self._threshold)
        if polynomial is None:
            return False
        off = self._off(usable, polynomial)
        if not self._take(secret, polynomial[0]):
            return self._dealt_falsely(secret, len(usable.columns) - len(off))
        self._blame(usable, off)
        return True

    def _try_sets(self, secret: _Secret) -> bool:
        """Return whether one of some random sets of t shares gives the secret committed to. Keep the secret then."""
        usable = secret.without(self._named()[self._roster.table[secret.row]].tolist())
        count, t = len(usable.columns), self._threshold
        if count <= t:  # the only set has been tried
            return False
        chance = secrets.SystemRandom()
        for _ in range(TRIES):
            places = sorted(chance.sample(range(count), t))
            points, values = tuple(usable.points[i] for i in places), [usable.values[i] for i in places]
            constant = sum(a * b for a, b in zip(coefficients(points), values, strict=True)) % PRIME
            if self._take(secret, constant):
                self._blame(usable, self._off(usable, interpolate(points, values)))
                return True
        return False

    def _take(self, secret: _Secret, constant: int) -> bool:
        """Return whether a rebuilt secret is the one that the client committed to. Keep the secret then."""
        if constant >> 8 * SEED:
            return False
        seed, slot = bytearray(SEED), secret.slot
        struct.pack_into(">QQ", seed, 0, constant >> 64, constant & 2**64 - 1)
        if slot in self._alive:
            if self._names.commitment(seed, slot) != self._commitments[slot]:
                return False
            self.seeds[slot] = seed
            return True
        pair = pair_from_seed(seed)
        wipe(seed)
        if pair.public_key().public_bytes_raw() != self._roster.mask_key(slot):
            return False
        self.pairs[slot] = pair
        return True

    def _dealt_falsely(self, secret: _Secret, agreeing: int) -> bool:
        """Return False; raise BadShare if so many shares of a wrong secret agree that its owner must have dealt them.

        At most B of them come from liars. With t + B of them t are honest, and t honest shares are on the polynomial
        that was dealt.
        """
        if agreeing >= self._threshold + self._liars_near + 1:
            text = f"slot {secret.slot} in cohort {self._cohort.cohort} dealt shares of another {self._kind(secret)}"
            text = f"{text} than it committed to{self._liars()}"
            raise BadShare(text, slot=secret.slot, cohort=self._cohort.cohort)
        return False

    def _off(self, secret: _Secret, polynomial: list[int]) -> list[int]:
        """Return the columns whose shares do not lie on the polynomial."""
        pairs = zip(secret.columns, secret.values, strict=True)
        return [c for c, value in pairs if value_at(polynomial, c + 1) != value]

    def _blame(self, secret: _Secret, off: list[int]) -> None:
        """Note that these neighbours' shares contradict the others'.

        With t + B shares on the polynomial it is the one that was dealt (see `_dealt_falsely`), and they have lied.
        With fewer, a dealer and its friends among its neighbours could make an honest neighbour look false.
        """
        self._disputed[secret.row, off] = True
        if len(secret.columns) - len(off) >= self._threshold + self._liars_near:
            self._proven[self._roster.table[secret.row, off]] = True

    def _named(self) -> Flags:
        return name_liars(self._sharing, self._disputed) | self._proven

    def _liars(self) -> str:
        return tell_liars(self._sharing, self._named(), self._disputed)

    def _kind(self, secret: _Secret) -> str:
        return "self seed" if secret.slot in self._alive else "mask key seed"

    def _cannot_be_rebuilt(self, secret: _Secret) -> BadShare:
        """Return the error for a secret that cannot be rebuilt: its client lied, or its holders; neither is proven."""
        text = f"the {self._kind(secret)} of slot {secret.slot} in cohort {self._cohort.cohort} cannot be rebuilt"
        tried = f"no {self._threshold} of the {len(secret.columns)} shares that are tried fit what it committed to"
        either = f"slot {secret.slot} lied, or its holders did{self._liars()}"
        return BadShare(f"{text}: {tried}; {either}", slot=secret.slot, cohort=self._cohort.cohort)


@dataclass(frozen=True, slots=True, eq=False)
class Recovered:
    """The survivors' sum modulo m, shape (dimension,), and the lies that were found.

    liars   slots, ascending, that provably lied. disputes   pairs of which one lied, not explained by those.
    """

    total: Vector
    liars: tuple[int, ...]
    disputes: int


def sum_masked(cohort: Cohort, bodies: Iterable[bytes]) -> Vector:
    """Return the sum of packed masked vectors modulo m. Memory is bounded: a few megabytes are added at a time."""
    channel, iterator = masking(cohort), iter(bodies)
    m, d, size = channel.modulus, channel.dimension, channel.report_size
    sum_ = np.zeros(d, dtype=np.uint64)
    while chunk := list(islice(iterator, max(1, _CHUNK // d))):
        if any(len(body) != size for body in chunk):
            raise BadMessage(f"a masked vector must have {size} bytes")
        sum_ = add(sum_, sum_rows(unpack_rows(b"".join(chunk), m, d), m), m)
    return sum_


def unmask_total(
    verdict: Verdict,
    survivors: Iterable[int],
    masked_total: Vector,
    commitments: Mapping[int, bytes],
    answers: Mapping[int, bytes],
) -> Recovered:
    """Return `masked_total`, the sum of the survivors' masked vectors, without its masks.

    verdict      on the shares, with the members of stage `masked`.
    survivors    slots. commitments   of all members, by slot. answers   bodies of stage `unmask`, by slot.
    Raises       TooSmall when too few survive or answer, BadShare when a secret cannot be rebuilt: never a wrong sum.
    """
    roster, alive = verdict.sharing.roster, frozenset(survivors)
    cohort = roster.cohort
    if not alive <= frozenset(verdict.sharing.members):
        raise BadMessage("a survivor is no member of stage masked")
    if len(alive) < cohort.minimum:
        raise TooSmall(len(alive), cohort.minimum)
    channel, names = masking(cohort), binding(cohort)
    m, d = channel.modulus, channel.dimension
    rebuilding = Rebuilding(verdict, alive, commitments, answers)
    liars, disputes = rebuilding.run()
    own = (names.self_mask(seed, slot) for slot, seed in rebuilding.seeds.items())
    sum_ = subtract(masked_total, sum_masks(own, m, d), m)
    wipe(*rebuilding.seeds.values())
    for slot, pair in rebuilding.pairs.items():
        near = [v for v in roster.neighbours(slot) if v in alive]
        keys = [(v, names.pair_mask(pair, roster.mask_key(v), slot, v)) for v in near]
        added, taken = [key for v, key in keys if v < slot], [key for v, key in keys if v > slot]  # by the survivors
        sum_ = add(subtract(sum_, sum_masks(added, m, d), m), sum_masks(taken, m, d), m)
    return Recovered(sum_, liars, disputes)
