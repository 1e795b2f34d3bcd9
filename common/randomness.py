"""Sources of random bits: the operating system's CSPRNG, or a labelled seed in tests and runs that are named unsafe."""

import hashlib
import os
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray


class Stream(Protocol):
    """A source of uniform bits."""

    def bytes(self, count: int) -> bytes:
        """Return `count` uniform bytes."""
        ...

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return `count` uniform 64-bit words."""
        ...


_ZEROS = memoryview(bytes(1 << 18))
"""Zeros that every stream encrypts. Making new zeros for each call takes twice as long as encrypting them."""


class _KeyStream:
    """AES-256-CTR under one key: a CSPRNG of bytes and words."""

    def __init__(self, key: bytes) -> None:
        self._encrypt = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def bytes(self, count: int) -> bytes:
        return self._encrypt.update(_ZEROS[:count] if count <= len(_ZEROS) else bytes(count))

    def words(self, count: int) -> NDArray[np.uint64]:
        return np.frombuffer(self.bytes(8 * count), dtype="<u8").astype(np.uint64, copy=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(key=…)"


class SystemStream(_KeyStream):
    """A fresh stream keyed with 256 bits from the operating system. Each owner of secrets has its own."""

    def __init__(self) -> None:
        super().__init__(os.urandom(32))


class KeyedStream(_KeyStream):
    """A stream under a given secret key of 32 bytes: the same key gives the same bits on every machine."""


class UnsafeSeededStream(_KeyStream):
    """A stream that every party with the seed can repeat: for tests, and runs that are named unsafe.

    `labels` separate streams of one seed: the same seed and labels give the same bits on every machine.
    """

    def __init__(self, seed: int, *labels: str | int) -> None:
        text = "\x1f".join(["distrust unsafe stream v1", str(seed), *map(str, labels)])
        super().__init__(hashlib.sha256(text.encode()).digest())


def generator(stream: Stream) -> np.random.Generator:
    """Return a numpy Generator started from a stream: for environments, never for privacy noise."""
    return np.random.Generator(np.random.PCG64(int.from_bytes(stream.bytes(16), "little")))
