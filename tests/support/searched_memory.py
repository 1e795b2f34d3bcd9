"""Hands out random bytes that a test knows, and searches the memory of another process for them."""

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PIECE = 8
"""Bytes that are looked for at once. The first eight of what Python frees are overwritten, and all after them stay."""

MOST = 1 << 16
"""Bytes in a source: as many as a FIFO holds."""

_WORDS = PIECE // 2


class KnownSource:
    """A FIFO of random bytes: another process reads them as it would read /dev/urandom."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._end = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # both ends: what was not read yet stays
        self._all = secrets.token_bytes(MOST)
        assert os.write(self._end, self._all) == len(self._all)

    def drawn(self) -> bytes:
        """Return what was read, and close the source: nothing can be read afterwards."""
        left = 0
        try:
            while more := os.read(self._end, MOST):
                left += len(more)
        except BlockingIOError:
            pass
        os.close(self._end)
        assert left, "the source was empty: its reader may wait for more"
        return self._all[:-left]


def pieces(secret: bytes) -> set[bytes]:
    """Return the pieces of a secret, one after another."""
    return {secret[at : at + PIECE] for at in range(0, len(secret), PIECE)}


def found(pid: int, wanted: Iterable[bytes]) -> set[bytes]:
    """Return those of the wanted pieces that are anywhere in the memory that a process can read and write.

    That memory of b bytes holds one of n random pieces by chance has a probability of at most b·n/2⁶⁴.
    """
    looked_for = set(wanted)
    words = np.frombuffer(b"".join(looked_for), dtype="<u2").reshape(-1, _WORDS)
    begins = np.zeros((_WORDS, 1 << 16), dtype=np.bool_)  # by place and value, whether a secret has this word there
    for place in range(_WORDS):
        begins[place, words[:, place]] = True
    return {one for part in _memory(pid) for one in _candidates(part, begins) if one in looked_for}


def _memory(pid: int) -> Iterable[bytes]:
    """Yield the mapped regions that can be written, each as a whole."""
    process = Path(f"/proc/{pid}")
    with (process / "mem").open("rb", buffering=0) as memory:
        for line in (process / "maps").read_text().splitlines():
            where, access, *_ = line.split()
            if access.startswith("rw"):
                start, end = (int(number, 16) for number in where.split("-"))
                memory.seek(start)
                yield memory.read(end - start)


def _candidates(part: bytes, begins: NDArray[np.bool_]) -> Iterable[bytes]:
    """Yield the pieces, at even and odd addresses, each of whose words some wanted piece has in its place."""
    for shift in (0, 1):
        words = np.frombuffer(part, dtype="<u2", offset=shift, count=(len(part) - shift) // 2)
        places = np.flatnonzero(begins[0][words[: 1 - _WORDS]])
        for ahead in range(1, _WORDS):
            places = places[begins[ahead][words[places + ahead]]]
        for at in (2 * places + shift).tolist():
            yield part[at : at + PIECE]
