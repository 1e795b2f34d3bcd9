"""Derives the keys of secure aggregation from X25519 pairs: RFC 7748 (X25519), RFC 5869 (HKDF-SHA256).

`Binding` has every derivation of one cohort: clients and aggregator compute the same keys.
"""

import hashlib
from functools import lru_cache

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from distrust.common.errors import BadMessage
from distrust.common.protocol.crypto.context import context, encode, masking
from distrust.common.protocol.crypto.share import PRIME, SEED
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.randomness import fresh, wipe

PROTOCOL = "distrust secagg v3"

KEY = 32
"""Bytes of a public key, and of every derived key."""

KEY_HASH = 32
"""Bytes of the hash of a client's public keys."""

_HASH = SHA256()
_MASK_PAIR = encode(PROTOCOL, "mask key pair")
_KEY_HASH = encode(PROTOCOL, "public keys")
_P = 2**255 - 19  # Curve25519 has its coordinates modulo this prime
# u-coordinates of the points of order 1, 2, 4 and 8 (RFC 7748, section 7): every agreement with them gives zero.
_WEAK = frozenset(
    {
        0,
        1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
        _P - 1,
    }
)


def derive(secret: bytes | bytearray, info: bytes) -> bytearray:
    """Return HKDF-SHA256 without salt, 32 bytes. The caller wipes them."""
    key = bytearray(KEY)
    HKDF(_HASH, KEY, None, info).derive_into(secret, key)
    return key


def new_seed() -> bytearray:
    """Return sixteen bytes from the operating system. The caller wipes them."""
    return fresh(SEED)


def new_pair() -> X25519PrivateKey:
    """Return a fresh key pair from the operating system."""
    return X25519PrivateKey.generate()


def pair_from_seed(seed: bytes | bytearray) -> X25519PrivateKey:
    """Return the mask key pair of a 16-byte seed. t shares of the seed rebuild it.

    The pair is made before the cohort is known, so only a label enters here. What two clients agree on with it is bound
    to the cohort (see `Binding`).
    """
    private = derive(seed, _MASK_PAIR)
    pair = X25519PrivateKey.from_private_bytes(private)
    wipe(private)  # OpenSSL has its own copy, which it zeroes as it frees the pair
    return pair


def key_hash(public: bytes) -> bytes:
    """Return the hash of a client's public keys (mask key ‖ channel key, 64 bytes): 32 bytes of SHA-256.

    The client sends it to the server, which publishes it; the keys themselves go to the aggregator.
    """
    return hashlib.sha256(_KEY_HASH + public).digest()


@lru_cache(maxsize=20_000)
def load_public(raw: bytes) -> X25519PublicKey:
    """Return a public key from 32 bytes. Cached: clients share neighbours. Raises BadMessage for a weak one."""
    if len(raw) != KEY or int.from_bytes(raw, "little") % 2**255 % _P in _WEAK:
        raise BadMessage("a public key must be 32 bytes of X25519 and no point of small order")
    return X25519PublicKey.from_public_bytes(raw)


def agree(private: X25519PrivateKey, public: bytes, info: bytes) -> bytearray:
    """Return the 32-byte key of a pair, bound to `info`; the caller wipes it. Raises BadMessage for a weak public key.

    What the two agree on before the derivation are `bytes`: the library has no other way to return them.
    """
    return derive(private.exchange(load_public(public)), info)


def pair_fields(a: int, b: int) -> bytes:
    """Return two slots in ascending order: the same bytes on both sides."""
    low, high = (a, b) if a < b else (b, a)
    return low.to_bytes(4, "big") + high.to_bytes(4, "big")


class Binding:
    """Ties key derivations to one cohort: each info begins with version, configuration, run, round and cohort.

    A mask's info continues with its name, the vector's length and modulus, and the sorted pair (or the slot, twice).
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
        first, second = (int.from_bytes(digest, "big") % (PRIME - 1) + 1 for digest in hashes)
        return first, second

    def pair_mask(self, private: X25519PrivateKey, public: bytes, a: int, b: int) -> bytearray:
        """Return the key of the mask between slots a and b. Raises BadMessage for a weak public key."""
        return agree(private, public, self._pair_mask + pair_fields(a, b))

    def self_mask(self, seed: bytes | bytearray, slot: int) -> bytearray:
        """Return the key of a slot's self mask."""
        return derive(seed, self._self_mask + pair_fields(slot, slot))

    def channel(self, private: X25519PrivateKey, public: bytes, a: int, b: int) -> bytearray:
        """Return the key of the boxes between slots a and b. Raises BadMessage for a weak public key."""
        return agree(private, public, self._channel + pair_fields(a, b))

    def commitment(self, seed: bytes | bytearray, slot: int) -> bytes:
        """Return a slot's commitment to its self seed, sent with the shares: 32 bytes that hide 128 random bits."""
        hash_ = hashlib.sha256(self._commitment + slot.to_bytes(4, "big"))
        hash_.update(seed)  # not joined to the rest: that would be a copy of the seed in `bytes`
        return hash_.digest()


@lru_cache(maxsize=64)
def binding(cohort: Cohort) -> Binding:
    """Return the binding of a cohort, cached: it is public."""
    return Binding(cohort)
