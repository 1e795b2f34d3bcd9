"""Answers the five stages of secure aggregation for one client, and holds its secrets meanwhile. No I/O.

Bonawitz et al. 2017, with the graph of Bell et al. 2020, with key hashes and statements that the server publishes, and
with shares that are confirmed before they are relied on (docs/concepts/privacy/aggregator.md).
A client answers each stage once: a repeat of the same request gets the same bytes, another request is refused.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from distrust.common.errors import BadMessage, BadParameter, Refused, WrongStage
from distrust.common.modular import Vector, add, pack, subtract
from distrust.common.protocol.crypto.context import confirm_statement, masked_statement, masking, unmask_statement
from distrust.common.protocol.crypto.graph import Roster, bitmap_integer
from distrust.common.protocol.crypto.keys import binding, key_hash, new_pair, new_seed, pair_from_seed
from distrust.common.protocol.crypto.mask import sum_masks
from distrust.common.protocol.crypto.parameters import neighbourhood, window
from distrust.common.protocol.crypto.seal import BOX, close_box, open_box
from distrust.common.protocol.crypto.share import (
    MISSING,
    SHARE_SIZE,
    Polynomial,
    blend,
    evaluate,
    polynomials,
    read_triple,
)
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.randomness import wipe

CHALLENGE = 32
"""Bytes of the aggregator's challenge."""

_Stage = Literal["keys", "shares", "confirm", "masked", "unmask"]


@dataclass(slots=True, eq=False, repr=False)
class Secrets:
    """Keys, seeds and neighbours' shares that one client holds for one cohort. `wipe` zeroes them at its end.

    Seeds, channel keys and neighbours' shares lie in buffers of their own. What else the client computes with are
    Python's integers and `bytes` of libraries, which cannot be zeroed (SECURITY.md, "What memory keeps").

    Keys and seeds are fresh from the operating system, for one slot of one cohort, and made before either is known.

    public        mask key ‖ channel key, 64 bytes: what stage `keys` sends, and whose hash goes to the server.
    roster        from stage `shares` on.
    polynomials   of the self seed, the mask seed and the blinding, between the stages `shares` and `confirm`.
    channel_keys  by neighbour, between the stages `shares` and `confirm`: 32 bytes; a cipher object takes kilobytes.
    held          by neighbour that shared, from stage `confirm` on: shares of both seeds, 34 bytes, or none if the box
                  did not open.
    members       the members of the stage answered last, as the bits of an integer.
    statement     of the stage answered last.
    """

    mask_seed: bytearray = field(init=False)
    self_seed: bytearray = field(init=False)
    mask_pair: X25519PrivateKey | None = field(init=False)
    channel_pair: X25519PrivateKey | None = field(init=False)
    public: bytes = field(init=False)
    roster: Roster = field(init=False)
    polynomials: tuple[Polynomial, Polynomial, Polynomial] | None = field(default=None, init=False)
    channel_keys: dict[int, bytearray] = field(default_factory=dict, init=False)
    held: dict[int, bytearray | None] = field(default_factory=dict, init=False)
    members: int = field(default=0, init=False)
    statement: bytes = field(default=b"", init=False)

    def __post_init__(self) -> None:
        self.mask_seed, self.self_seed = new_seed(), new_seed()
        pairs = pair_from_seed(self.mask_seed), new_pair()
        self.mask_pair, self.channel_pair = pairs
        self.public = b"".join(pair.public_key().public_bytes_raw() for pair in pairs)

    def __repr__(self) -> str:
        return "Secrets(…)"

    def wipe(self) -> None:
        """Zero seeds, keys and shares, and drop both key pairs: OpenSSL zeroes the private keys as it frees them."""
        wipe(self.mask_seed, self.self_seed, *self.channel_keys.values(), *self.held.values())
        self.mask_pair = self.channel_pair = self.polynomials = None
        self.channel_keys, self.held = {}, {}


class MaskingClient:
    """The client of one slot of one cohort: a method for each stage, which returns the body that it sends.

    secrets          fresh keys and seeds of this client. The server has published their hash for the slot.
    min_survivors    that this client insists on, whatever the cohort says: a server may announce an inflated n.
    dropout, corrupt the run's rates; k, t and the minimum of the cohort must follow from them.
    Raises           Refused where an answer would weaken a client's privacy, BadMessage for what cannot be read,
                     WrongStage for a stage before its time.
    """

    def __init__(
        self, cohort: Cohort, slot: int, secrets: Secrets, *, min_survivors: int, dropout: float, corrupt: float
    ) -> None:
        if not 0 <= slot < cohort.clients:
            raise BadParameter("slot", slot, f"must lie in [0, {cohort.clients})")
        _check_parameters(cohort, dropout, corrupt)
        self.cohort, self.slot = cohort, slot
        self._channel, self._binding = masking(cohort), binding(cohort)
        self._min_survivors = max(cohort.minimum, min_survivors)
        self._window = window(cohort.clients, dropout, corrupt, cohort.minimum)
        self._secrets: Secrets | None = secrets
        self._answered: dict[_Stage, tuple[bytes, bytes]] = {}

    def __repr__(self) -> str:
        return f"MaskingClient(cohort={self.cohort.cohort!r}, slot={self.slot}, secrets=…)"

    def keys(self) -> bytes:
        """Return the body of stage `keys`: mask public key ‖ channel public key, 64 bytes."""
        return self._once("keys", b"", lambda secrets: secrets.public)

    def shares(self, roster: Roster, published: Mapping[int, bytes]) -> bytes:
        """Return the body of stage `shares`: commitment of the self seed (32 bytes) ‖ a box (67) for each neighbour.

        published   the key hash of each slot (32 bytes), as the server published it.

        Refuses a roster without its own unchanged keys, with keys of a neighbour that do not fit the published hash,
        with fewer members than the minimum, or with fewer than t neighbours.
        """
        self._needs("keys")
        return self._once("shares", roster.digest, lambda secrets: self._share(secrets, roster, published))

    def confirm(self, shared: bytes, challenge: bytes, inbox: bytes, statement: bytes) -> bytes:
        """Return the body of stage `confirm`: its blinded polynomial ‖ the blend of each sharing neighbour's shares.

        These are t + (neighbours that shared) field elements, 17 bytes each; 17 bytes 0xff for a missing share.

        shared      bitmap of the clients that shared.
        challenge   the aggregator's 32 random bytes.
        inbox       the boxes of its neighbours among them, in order; a box that does not open is a missing share.
        statement   what the server published of this stage.

        Refuses another statement, and members that are not of the roster, lack this client or are too few.
        """
        self._needs("shares")
        request = _digest(shared, challenge, inbox, statement)
        return self._once(
            "confirm", request, lambda secrets: self._confirm(secrets, shared, challenge, inbox, statement)
        )

    def masked(self, vector: Vector, members: bytes, statement: bytes) -> bytes:
        """Return the body of stage `masked`: the vector, shape (dimension,) below the modulus, under its masks, packed.

        members     bitmap of the clients whose shares were confirmed.
        statement   what the server published of this stage.

        Refuses another statement, and members that did not share, lack this client or are too few.
        """
        self._needs("confirm")
        request = _digest(vector.astype("<u8").tobytes(), members, statement)
        return self._once("masked", request, lambda secrets: self._mask(secrets, vector, members, statement))

    def unmask(self, survivors: bytes, statement: bytes) -> bytes:
        """Return the body of stage `unmask`.

        17 bytes for each neighbour among the members, in order. Forget all secrets.

        The bytes are a share of a survivor's self seed, or of a lost client's mask key seed, never of both; 0xff where
        this client has no share.

        survivors   bitmap.
        statement   what the server published of this stage.

        Refuses another statement, and survivors that are no members, lack this client, are fewer than the minimum,
        leave a member with fewer than t neighbours, or leave more than w lost clients in k/2 places of the ring.
        """
        if self._secrets is not None:  # afterwards only the repeat is left to answer
            self._needs("masked")
        request = _digest(survivors, statement)
        answer = self._once("unmask", request, lambda secrets: self._reveal(secrets, survivors, statement))
        self.forget()
        return answer

    def forget(self) -> None:
        """Wipe keys, seeds and shares, after the last answer or on timeout. Only the last request may be repeated.

        Nothing that can be reached from this client holds them then. Not while another thread computes an answer: it
        would compute with zeros.
        """
        if self._secrets is not None:
            self._secrets.wipe()
        self._secrets = None
        self._answered = dict(list(self._answered.items())[-1:])

    def _once(self, stage: _Stage, request: bytes, answer: Callable[[Secrets], bytes]) -> bytes:
        if stage in self._answered:
            first, bytes_ = self._answered[stage]
            if first != request:
                raise Refused(f"slot {self.slot} has answered another request of stage {stage}")
            return bytes_
        if self._secrets is None:
            raise Refused(f"slot {self.slot} has forgotten its keys")
        bytes_ = answer(self._secrets)
        self._answered[stage] = request, bytes_
        return bytes_

    def _needs(self, stage: _Stage) -> None:
        if self._secrets is not None and stage not in self._answered:
            raise WrongStage(f"slot {self.slot} has not answered stage {stage} yet")

    def _share(self, secrets: Secrets, roster: Roster, published: Mapping[int, bytes]) -> bytes:
        self._check_roster(secrets, roster, published)
        near, own, box, pair = roster.neighbours(self.slot), self.slot, self._binding.box, secrets.channel_pair
        assert pair is not None  # until it is wiped
        try:
            keys = [self._binding.channel(pair, roster.channel_key(v), own, v) for v in near]
        except BadMessage as error:
            raise Refused(f"the roster holds an unusable key: {error.detail}") from error
        secrets.polynomials = polynomials(secrets.self_seed, secrets.mask_seed, self._channel.threshold)
        secrets.roster, secrets.channel_keys = roster, dict(zip(near, keys, strict=True))
        triples = evaluate(secrets.polynomials, len(near))
        boxes = [close_box(key, own, v, box, triple) for v, key, triple in zip(near, keys, triples, strict=True)]
        return self._binding.commitment(secrets.self_seed, own) + b"".join(boxes)

    def _check_roster(self, secrets: Secrets, roster: Roster, published: Mapping[int, bytes]) -> None:
        if roster.cohort != self.cohort:
            raise Refused(f"the roster is of cohort {roster.cohort.cohort}, not of {self.cohort.cohort}")
        if self.slot not in roster or roster.keys_of(self.slot) != secrets.public:
            raise Refused(f"the roster does not hold the keys of slot {self.slot} as it sent them")
        self._check_count(len(roster), "members")
        near = roster.neighbours(self.slot)
        if len(near) < self._channel.threshold:
            raise Refused(f"slot {self.slot} has fewer than t = {self._channel.threshold} neighbours")
        for v in (self.slot, *near):
            if v not in published:
                raise Refused(f"the server published no key hash of slot {v}, which is in the roster")
            if key_hash(roster.keys_of(v)) != published[v]:
                raise Refused(f"the roster's keys of slot {v} are not those whose hash the server published")

    def _confirm(self, secrets: Secrets, shared: bytes, challenge: bytes, inbox: bytes, statement: bytes) -> bytes:
        if len(challenge) != CHALLENGE:
            raise BadMessage(f"the challenge has {len(challenge)} bytes, and must have {CHALLENGE}")
        roster = secrets.roster
        self._check_statement("confirm", statement, confirm_statement(roster.digest, self.cohort, shared, challenge))
        members = self._read_members(shared, roster.bits, "clients that shared")
        near = self._near(roster.neighbours(self.slot), members)
        opened = self._open(secrets, near, inbox)
        factors = self._binding.challenge(challenge)
        # The third polynomial is uniform, so the blend discloses nothing of the other two. A second blend with another
        # challenge would: the difference of the two is free of the third polynomial. So there is one answer only, and
        # the statement contains the challenge, so that all holders of this client's shares answer to the same one.
        assert secrets.polynomials is not None  # since stage `shares`
        own = blend(factors, zip(*secrets.polynomials, strict=True))
        triples = [None if raw is None else read_triple(raw) for raw in opened]
        theirs = [MISSING if triple is None else blend(factors, (triple,)) for triple in triples]
        pairs = [raw[: 2 * SHARE_SIZE] if raw and triple else None for raw, triple in zip(opened, triples, strict=True)]
        secrets.held = dict(zip(near, pairs, strict=True))
        secrets.members, secrets.statement = members, statement
        wipe(*opened, *secrets.channel_keys.values())
        secrets.channel_keys, secrets.polynomials = {}, None
        return own + b"".join(theirs)

    def _open(self, secrets: Secrets, near: list[int], inbox: bytes) -> list[bytearray | None]:
        """Return the contents of the neighbours' boxes, 51 bytes each; None for a box that does not open."""
        if len(inbox) != BOX * len(near):
            per = f"{BOX} for each of {len(near)} neighbours"
            raise BadMessage(f"the inbox has {len(inbox)} bytes, and must have {per}")
        boxes = [inbox[i : i + BOX] for i in range(0, len(inbox), BOX)]
        return [self._open_one(secrets.channel_keys[v], v, box) for v, box in zip(near, boxes, strict=True)]

    def _open_one(self, key: bytearray, sender: int, box: bytes) -> bytearray | None:
        try:
            return open_box(key, sender, self.slot, self._binding.box, box)
        except BadMessage:
            return None

    def _mask(self, secrets: Secrets, vector: Vector, members: bytes, statement: bytes) -> bytes:
        roster = secrets.roster
        _check_vector(vector, self._channel.dimension, self._channel.modulus)
        self._check_statement("masked", statement, masked_statement(secrets.statement, self.cohort, members))
        present = self._read_members(members, secrets.members, "members")
        near = self._near(roster.neighbours(self.slot), present)
        total_ = self._add_masks(secrets, roster, near, vector)
        kept = {v: secrets.held.pop(v) for v in near}
        wipe(*secrets.held.values())
        secrets.held = kept
        secrets.members, secrets.statement = present, statement
        return pack(total_, self._channel.modulus)

    def _add_masks(self, secrets: Secrets, roster: Roster, near: list[int], vector: Vector) -> Vector:
        """Return vector + self mask + Σ_{v above} pair masks - Σ_{v below} pair masks. Pair masks cancel in the sum."""
        m, d, own = self._channel.modulus, self._channel.dimension, self.slot
        agree, pair = self._binding.pair_mask, secrets.mask_pair
        assert pair is not None  # until it is wiped
        plus = [agree(pair, roster.mask_key(v), own, v) for v in near if v > own]
        minus = [agree(pair, roster.mask_key(v), own, v) for v in near if v < own]
        plus.append(self._binding.self_mask(secrets.self_seed, own))
        return subtract(add(vector, sum_masks(plus, m, d), m), sum_masks(minus, m, d), m)

    def _reveal(self, secrets: Secrets, survivors: bytes, statement: bytes) -> bytes:
        self._check_statement("unmask", statement, unmask_statement(secrets.statement, self.cohort, survivors))
        alive = self._read_members(survivors, secrets.members, "survivors")
        fault = secrets.roster.fault(secrets.members, alive, self._window)
        if fault is not None:
            raise Refused(fault)
        kinds = [(pair, 0 if alive >> v & 1 else SHARE_SIZE) for v, pair in secrets.held.items()]
        return b"".join([MISSING if pair is None else pair[start : start + SHARE_SIZE] for pair, start in kinds])

    def _check_statement(self, stage: _Stage, published: bytes, own: bytes) -> None:
        if published != own:
            raise Refused(f"stage {stage}: what slot {self.slot} was told is not what the server published for all")

    def _read_members(self, bitmap: bytes, known: int, what: str) -> int:
        members = bitmap_integer(bitmap, self.cohort.clients)
        if members & ~known:
            raise Refused(f"the {what} name a slot that was not there in the stage before")
        if not members >> self.slot & 1:
            raise Refused(f"the {what} lack slot {self.slot}, which is there")
        self._check_count(members.bit_count(), what)
        return members

    def _near(self, neighbours: Sequence[int], members: int) -> list[int]:
        near = [v for v in neighbours if members >> v & 1]
        if len(near) < self._channel.threshold:
            raise Refused(f"{len(near)} neighbours of slot {self.slot} are left, and t = {self._channel.threshold}")
        return near

    def _check_count(self, count: int, what: str) -> None:
        if count < self._min_survivors:
            raise Refused(f"{count} {what}, and slot {self.slot} insists on {self._min_survivors}")


def _check_parameters(cohort: Cohort, dropout: float, corrupt: float) -> None:
    channel = masking(cohort)
    try:
        expected = neighbourhood(cohort.clients, dropout, corrupt, cohort.minimum)
    except BadParameter as error:
        raise Refused(f"no neighbour graph serves this cohort: {error.detail}") from error
    if (channel.neighbours, channel.threshold) != expected:
        shown = f"k, t = {channel.neighbours}, {channel.threshold}"
        raise Refused(f"{shown}, and the run's rates give {expected[0]}, {expected[1]}")
    if cohort.minimum < cohort.clients - int(dropout * cohort.clients):
        raise Refused(f"the cohort opens at {cohort.minimum} survivors, below what the dropout rate leaves")


def _check_vector(vector: Vector, dimension: int, modulus: int) -> None:
    if vector.shape != (dimension,) or vector.dtype != np.uint64:
        raise BadParameter("vector", f"{vector.dtype} {vector.shape}", f"must be uint64 of shape ({dimension},)")
    if int(vector.max()) >= modulus:
        raise BadParameter("vector", "a coordinate", f"must be below the modulus {modulus}")


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()
