"""Sources of random bits: the system's CSPRNG, a run's public coins, and seeds of tests and runs that are named unsafe.

A secret that must not outlast its use lies in a `bytearray` from `fresh`, and `wipe` zeroes it. `bytes` could not be
zeroed: Python frees them as they are.
"""

import hashlib
import os
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

_SYSTEM = "/dev/urandom"
"""The operating system's CSPRNG as a file: it is read into a buffer. `os.urandom` would leave `bytes` behind."""


def fresh(count: int) -> bytearray:
    """Return `count` secret bytes from the operating system, in a buffer that `wipe` can zero."""
    buffer = bytearray(count)
    source = os.open(_SYSTEM, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.readv(source, [buffer]) != count:
            raise OSError(f"{_SYSTEM} gave less than {count} bytes")
    finally:
        os.close(source)
    return buffer


def wipe(*buffers: bytearray | None) -> None:
    """Overwrite each buffer with zeros, in place. None is left out."""
    for buffer in buffers:
        if buffer is not None:
            buffer[:] = bytes(len(buffer))


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

    def __init__(self, key: bytes | bytearray) -> None:
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
        key = fresh(32)
        super().__init__(key)
        wipe(key)  # the cipher has its own copy, which OpenSSL zeroes as it frees it


class KeyedStream(_KeyStream):
    """A stream under a given secret key of 32 bytes: the same key gives the same bits on every machine."""


class UnsafeSeededStream(_KeyStream):
    """A stream that every party with the seed can repeat: for tests, and runs that are named unsafe.

    `labels` separate streams of one seed: the same seed and labels give the same bits on every machine.
    """

    def __init__(self, seed: int, *labels: str | int) -> None:
        text = "\x1f".join(["distrust unsafe stream v1", str(seed), *map(str, labels)])
        super().__init__(hashlib.sha256(text.encode()).digest())


class PublicStream(_KeyStream):
    """Random bits that follow from a public digest: policies that draw their decisions take them.

    Any party that knows the digest can compute them, so that no secret may rest on them. `labels` separate the streams
    of one digest.
    """

    def __init__(self, digest: bytes, *labels: str | int) -> None:
        text = "\x1f".join(["distrust public stream v1", digest.hex(), *map(str, labels)])
        super().__init__(hashlib.sha256(text.encode()).digest())


def uniforms(stream: Stream, count: int) -> NDArray[np.float64]:
    """Return `count` numbers in (0, 1), the middles of 2⁵² cells."""
    return np.asarray(((stream.words(count) >> np.uint64(12)) + 0.5) * 2.0**-52, dtype=np.float64)


def generator(stream: Stream) -> np.random.Generator:
    """Return a numpy Generator started from a stream: for environments, never for privacy noise."""
    return np.random.Generator(np.random.PCG64(int.from_bytes(stream.bytes(16), "little")))
