"""X25519 key pairs and the keys that two clients agree on (RFC 7748, RFC 5869)."""

import hashlib
import os
from functools import lru_cache

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from distrust.common.crypto.context import encode
from distrust.common.errors import BadMessage

SEED = 16
"""Bytes of a seed: of the mask key pair, and of the self mask."""
KEY = 32
"""Bytes of a public key, and of every derived key."""

KEY_HASH = 32
"""Bytes of the hash of a client's public keys."""

_HASH = SHA256()
_MASK_PAIR = encode("distrust secagg v2", "mask key pair")
_KEY_HASH = encode("distrust secagg v2", "public keys")
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


def pair_from_seed(seed: bytes) -> X25519PrivateKey:
    """Return the mask key pair of a 16-byte seed. t shares of the seed rebuild it.

    The pair is made before the cohort is known, so only a label enters here. What two clients agree on with it is bound
    to the cohort (see `common.crypto.binding`).
    """
    return X25519PrivateKey.from_private_bytes(derive(seed, _MASK_PAIR))


def key_hash(public: bytes) -> bytes:
    """Return the hash of a client's public keys (mask key ‖ channel key, 64 bytes): 32 bytes of SHA-256.

    The client sends it to the server, which publishes it; the keys themselves take the road through the aggregator.
    """
    return hashlib.sha256(_KEY_HASH + public).digest()


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
