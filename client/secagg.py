"""One client's four rounds of secure aggregation, without I/O.

Bonawitz et al. 2017, with the graph of Bell et al. 2020.
It answers each stage once: a repeat of the same request gets the same bytes, another request is refused.
"""

import hashlib
from collections.abc import Callable
from typing import Literal

import numpy as np

from client.masking_secrets import Secrets
from common.crypto.binding import binding
from common.crypto.box import BOX, close_box, open_box
from common.crypto.graph import Roster, masking
from common.crypto.mask import total
from common.crypto.members import bitmap_integer
from common.crypto.parameters import neighbourhood
from common.crypto.share import SHARE, split_pair
from common.errors import BadMessage, BadParameter, Refused, WrongStage
from common.messages.cohort import Cohort
from common.modular import Vector, add, pack, subtract

_Stage = Literal["keys", "shares", "masked", "unmask"]


class MaskingClient:
    """One slot of one cohort, with fresh keys and seeds of its own.

    floor            survivors that this client insists on, whatever the cohort says: against an inflated n.
    dropout, corrupt the run's rates; k, t and the minimum of the cohort must follow from them.
    Raises           Refused where an answer would weaken somebody's privacy, BadMessage for what cannot be read,
                     WrongStage for a stage before its time.
    """

    def __init__(self, cohort: Cohort, slot: int, *, floor: int, dropout: float, corrupt: float) -> None:
        if not 0 <= slot < cohort.clients:
            raise BadParameter("slot", slot, f"must lie in [0, {cohort.clients})")
        _check_parameters(cohort, dropout, corrupt)
        self.cohort, self.slot = cohort, slot
        self._channel, self._binding = masking(cohort), binding(cohort)
        self._least = max(cohort.minimum, floor)
        self._secrets: Secrets | None = Secrets(self._binding)
        self._answered: dict[_Stage, tuple[bytes, bytes]] = {}

    def __repr__(self) -> str:
        return f"MaskingClient(cohort={self.cohort.cohort!r}, slot={self.slot}, secrets=…)"

    def keys(self) -> bytes:
        """Stage `keys`: mask public key ‖ channel public key, 64 bytes."""
        return self._once("keys", b"", lambda secrets: secrets.public)

    def shares(self, roster: Roster) -> bytes:
        """Stage `shares`: commitment of the self seed (32) ‖ one box (50) for each neighbour, in neighbour order.

        Refuses a roster without its own unchanged keys, below the minimum, or with fewer than t neighbours.
        """
        self._needs("keys")
        return self._once("shares", roster.digest, lambda secrets: self._share(secrets, roster))

    def masked(self, vector: Vector, members: bytes, inbox: bytes) -> bytes:
        """Stage `masked`: the vector, shape (dimension,) below the modulus, under its masks, packed.

        members   bitmap of the clients that shared. inbox   the boxes of its neighbours among them, in order.
        Refuses members that are not of the roster, lack this client, are too few, or boxes that do not open.
        """
        self._needs("shares")
        request = _digest(vector.astype("<u8").tobytes(), members, inbox)
        return self._once("masked", request, lambda secrets: self._mask(secrets, vector, members, inbox))

    def unmask(self, survivors: bytes) -> bytes:
        """Stage `unmask`: for each neighbour that shared, in neighbour order, one 17-byte share; then it forgets.

        survivors   bitmap. A survivor's share is of its self seed, a lost one's of its mask key seed; never both.
        Refuses survivors that did not share, lack this client, are below minimum or floor, or fewer than t near it.
        """
        if self._secrets is not None:  # afterwards only the repeat is left to answer
            self._needs("masked")
        answer = self._once("unmask", _digest(survivors), lambda secrets: self._reveal(secrets, survivors))
        self.forget()
        return answer

    def forget(self) -> None:
        """Erase keys, seeds and shares, after the answer or on timeout. Only the last request may still be repeated."""
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

    def _share(self, secrets: Secrets, roster: Roster) -> bytes:
        self._check_roster(secrets, roster)
        near, own, box = roster.neighbours(self.slot), self.slot, self._binding.box
        pairs = split_pair(secrets.self_seed, secrets.mask_seed, len(near), self._channel.threshold)
        try:
            keys = [self._binding.channel(secrets.channel_pair, roster.channel_key(v), own, v) for v in near]
        except BadMessage as error:
            raise Refused(f"the roster holds an unusable key: {error.detail}") from error
        secrets.roster, secrets.channel_keys = roster, dict(zip(near, keys, strict=True))
        boxes = [close_box(key, own, v, box, pair) for v, key, pair in zip(near, keys, pairs, strict=True)]
        return self._binding.commitment(secrets.self_seed, own) + b"".join(boxes)

    def _check_roster(self, secrets: Secrets, roster: Roster) -> None:
        if roster.cohort != self.cohort:
            raise Refused(f"the roster is of cohort {roster.cohort.cohort}, not of {self.cohort.cohort}")
        if self.slot not in roster or roster.keys_of(self.slot) != secrets.public:
            raise Refused(f"the roster does not hold the keys of slot {self.slot} as it sent them")
        self._check_count(len(roster), "members")
        if len(roster.neighbours(self.slot)) < self._channel.threshold:
            raise Refused(f"slot {self.slot} has fewer than t = {self._channel.threshold} neighbours")

    def _mask(self, secrets: Secrets, vector: Vector, members: bytes, inbox: bytes) -> bytes:
        roster = secrets.agreed
        _check_vector(vector, self._channel.dimension, self._channel.modulus)
        shared = self._read_members(members, roster.bits, "members")
        near = self._near(roster.neighbours(self.slot), shared)
        held = self._open(secrets, near, inbox)
        total_ = self._add_masks(secrets, roster, near, vector)
        secrets.shared, secrets.held, secrets.channel_keys = shared, held, {}
        return pack(total_, self._channel.modulus)

    def _open(self, secrets: Secrets, near: list[int], inbox: bytes) -> dict[int, bytes]:
        if len(inbox) != BOX * len(near):
            raise BadMessage(
                f"the inbox has {len(inbox)} bytes, and must have {BOX} for each of {len(near)} neighbours"
            )
        boxes = [inbox[i : i + BOX] for i in range(0, len(inbox), BOX)]
        try:
            opened = [
                open_box(secrets.channel_keys[v], v, self.slot, self._binding.box, box)
                for v, box in zip(near, boxes, strict=True)
            ]
        except BadMessage as error:
            raise Refused(error.detail) from error
        return dict(zip(near, opened, strict=True))

    def _add_masks(self, secrets: Secrets, roster: Roster, near: list[int], vector: Vector) -> Vector:
        """The vector + self mask + Σ_{v above} pair masks - Σ_{v below} pair masks: these cancel in the sum."""
        m, d, own = self._channel.modulus, self._channel.dimension, self.slot
        pair = self._binding.pair_mask
        plus = [pair(secrets.mask_pair, roster.mask_key(v), own, v) for v in near if v > own]
        minus = [pair(secrets.mask_pair, roster.mask_key(v), own, v) for v in near if v < own]
        plus.append(self._binding.self_mask(secrets.self_seed, own))
        return subtract(add(vector, total(plus, m, d), m), total(minus, m, d), m)

    def _reveal(self, secrets: Secrets, survivors: bytes) -> bytes:
        alive = self._read_members(survivors, secrets.shared, "survivors")
        self._near(list(secrets.held), alive)
        return b"".join(pair[:SHARE] if alive >> v & 1 else pair[SHARE:] for v, pair in secrets.held.items())

    def _read_members(self, bitmap: bytes, known: int, what: str) -> int:
        members = bitmap_integer(bitmap, self.cohort.clients)
        if members & ~known:
            raise Refused(f"the {what} name a slot that was not there in the stage before")
        if not members >> self.slot & 1:
            raise Refused(f"the {what} lack slot {self.slot}, which is there")
        self._check_count(members.bit_count(), what)
        return members

    def _near(self, neighbours: tuple[int, ...] | list[int], members: int) -> list[int]:
        near = [v for v in neighbours if members >> v & 1]
        if len(near) < self._channel.threshold:
            raise Refused(f"{len(near)} neighbours of slot {self.slot} are left, and t = {self._channel.threshold}")
        return near

    def _check_count(self, count: int, what: str) -> None:
        if count < self._least:
            raise Refused(f"{count} {what}, and slot {self.slot} insists on {self._least}")


def _check_parameters(cohort: Cohort, dropout: float, corrupt: float) -> None:
    channel = masking(cohort)
    try:
        expected = neighbourhood(cohort.clients, dropout, corrupt, cohort.minimum)
    except BadParameter as error:
        raise Refused(f"no neighbour graph serves this cohort: {error.detail}") from error
    if (channel.neighbours, channel.threshold) != expected:
        raise Refused(
            f"k, t = {channel.neighbours}, {channel.threshold}, and the run's rates give {expected[0]}, {expected[1]}"
        )
    if cohort.minimum < cohort.clients - int(dropout * cohort.clients):
        raise Refused(f"the cohort opens at {cohort.minimum} survivors, below what the dropout rate leaves")


def _check_vector(vector: Vector, dimension: int, modulus: int) -> None:
    if vector.shape != (dimension,) or vector.dtype != np.uint64:
        raise BadParameter("vector", f"{vector.dtype} {vector.shape}", f"must be uint64 of shape ({dimension},)")
    if int(vector.max()) >= modulus:
        raise BadParameter("vector", "a coordinate", f"must be below the modulus {modulus}")


def _digest(*parts: bytes) -> bytes:
    hash_ = hashlib.sha256()
    for part in parts:
        hash_.update(len(part).to_bytes(8, "big"))
        hash_.update(part)
    return hash_.digest()
