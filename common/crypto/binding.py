"""How secure aggregation names its keys: every derivation of one cohort, the same for clients and aggregator."""

import hashlib
from functools import lru_cache

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from distrust.common.crypto.agree import agree, derive, pair_fields
from distrust.common.crypto.context import context, encode
from distrust.common.crypto.graph import masking
from distrust.common.crypto.share import PRIME
from distrust.common.messages.cohort import Cohort

PROTOCOL = "distrust secagg v2"


class Binding:
    """HKDF infos and hashes of one cohort: version, configuration, run, round and cohort stand in front of each.

    A mask's info goes on with the vector's name, its length and modulus, and the sorted pair (or the slot, twice).
    """

    def __init__(self, cohort: Cohort) -> None:
        channel = masking(cohort)
        self.context = context(PROTOCOL, cohort)
        vector = (channel.dimension, channel.modulus)
        self._pair_mask = self.context + encode("pair mask", *vector)
        self._self_mask = self.context + encode("self mask", *vector)
        self._channel = self.context + encode("channel")
        self._commitment = self.context + encode("commitment")
        self._challenge = self.context + encode("challenge")
        self.box = self.context + encode("box")

    def challenge(self, drawn: bytes) -> tuple[int, int]:
        """Return γ₁ and γ₂ of the confirmation: nonzero field elements from the aggregator's 32 random bytes.

        512 bits are reduced modulo 2¹³⁰ - 6, so that each value is uniform up to 2⁻³⁸².
        """
        hashes = [hashlib.sha512(self._challenge + encode(index, drawn)).digest() for index in (1, 2)]
        first, second = (int.from_bytes(found, "big") % (PRIME - 1) + 1 for found in hashes)
        return first, second

    def pair_mask(self, private: X25519PrivateKey, public: bytes, a: int, b: int) -> bytes:
        """The key of the mask between slots a and b. Raises BadMessage for a weak public key."""
        return agree(private, public, self._pair_mask + pair_fields(a, b))

    def self_mask(self, seed: bytes, slot: int) -> bytes:
        """The key of a slot's self mask."""
        return derive(seed, self._self_mask + pair_fields(slot, slot))

    def channel(self, private: X25519PrivateKey, public: bytes, a: int, b: int) -> bytes:
        """The key of the boxes between slots a and b. Raises BadMessage for a weak public key."""
        return agree(private, public, self._channel + pair_fields(a, b))

    def commitment(self, seed: bytes, slot: int) -> bytes:
        """What a slot publishes of its self seed along with the shares: 32 bytes that hide 128 random bits."""
        return hashlib.sha256(self._commitment + slot.to_bytes(4, "big") + seed).digest()


@lru_cache(maxsize=64)
def binding(cohort: Cohort) -> Binding:
    """The binding of a cohort, kept: it is public."""
    return Binding(cohort)
