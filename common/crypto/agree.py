"""X25519 key pairs and the keys that two clients agree on (RFC 7748, RFC 5869)."""

import os
from functools import lru_cache

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from common.crypto.context import encode
from common.errors import BadMessage

SEED = 16
"""Bytes of a seed: of the mask key pair, and of the self mask."""
KEY = 32
"""Bytes of a public key, and of every derived key."""

_HASH = SHA256()
_P = 2**255 - 19
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


def derive(secret: bytes, info: bytes) -> bytes:
    """HKDF-SHA256 without salt, 32 bytes."""
    return HKDF(_HASH, KEY, None, info).derive(secret)


def new_seed() -> bytes:
    """Sixteen bytes from the operating system."""
    return os.urandom(SEED)


def new_pair() -> X25519PrivateKey:
    """A fresh key pair from the operating system."""
    return X25519PrivateKey.generate()


def pair_from_seed(seed: bytes, context: bytes) -> X25519PrivateKey:
    """The mask key pair of a seed: who holds t shares of the seed can rebuild it."""
    return X25519PrivateKey.from_private_bytes(derive(seed, context + encode("mask key pair")))


@lru_cache(maxsize=20_000)
def load_public(raw: bytes) -> X25519PublicKey:
    """A public key from 32 bytes; kept, as a fleet's clients meet the same ones. Raises BadMessage for a weak point."""
    if len(raw) != KEY or int.from_bytes(raw, "little") % 2**255 % _P in _WEAK:
        raise BadMessage("a public key must be 32 bytes of X25519 and no point of small order")
    return X25519PublicKey.from_public_bytes(raw)


def agree(private: X25519PrivateKey, public: bytes, info: bytes) -> bytes:
    """The 32-byte key of a pair, bound to `info`. Raises BadMessage for a weak public key."""
    return HKDF(_HASH, KEY, None, info).derive(private.exchange(load_public(public)))


def pair_fields(a: int, b: int) -> bytes:
    """Two slots in ascending order: the same bytes on both sides."""
    low, high = (a, b) if a < b else (b, a)
    return low.to_bytes(4, "big") + high.to_bytes(4, "big")
