"""Keeps the server's two key pairs in a 0600 file: one signs tickets, one opens sealed records."""

import json
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from distrust.common.crypto.context import RUN_ID
from distrust.common.errors import Unavailable
from distrust.common.inputs import read_file
from distrust.common.wire import decode_blob, encode_blob

MOST_KEYS = 4096  # bytes of the file with both key pairs, which has about 120


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What the server draws from the operating system as it makes a run, and stores with it.

    run_id     public, 16 bytes: a run that is made anew from the same run file is another run.
    noise_key  the server's secret, 32 bytes: the analyzer's noise follows from it and from the batch.
    """

    run_id: bytes
    noise_key: bytes = field(repr=False)


def new_identity() -> RunIdentity:
    """Return the identity of a new run."""
    return RunIdentity(secrets.token_bytes(RUN_ID), secrets.token_bytes(32))


@dataclass(frozen=True, slots=True)
class PublicKeys:
    """The public halves: raw Ed25519 and X25519 keys, 32 bytes each."""

    ticket: bytes
    seal: bytes


@dataclass(frozen=True, slots=True)
class Keys:
    """The private halves."""

    ticket: Ed25519PrivateKey = field(repr=False)
    seal: X25519PrivateKey = field(repr=False)

    @property
    def public(self) -> PublicKeys:
        return PublicKeys(self.ticket.public_key().public_bytes_raw(), self.seal.public_key().public_bytes_raw())


def new_keys() -> Keys:
    """Return new key pairs from the operating system's CSPRNG."""
    return Keys(Ed25519PrivateKey.generate(), X25519PrivateKey.generate())


def load_or_make(path: Path) -> Keys:
    """Return the keys in `path`, made on first use.

    Raises Unavailable for a file that is no key file or not private.
    """
    try:
        if not path.exists():
            _write(path, new_keys())
    except OSError as error:
        raise Unavailable(f"key file {path}: {error.strerror}") from error
    return read_keys(path)


def read_keys(path: Path) -> Keys:
    """Return the keys in `path`. Raises Unavailable as `load_or_make` does, and where there is no file."""
    try:
        return _read(path)
    except OSError as error:
        raise Unavailable(f"key file {path}: {error.strerror}") from error


def _read(path: Path) -> Keys:
    raw, facts = read_file(path, MOST_KEYS)
    if facts.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Unavailable(f"key file {path}: others may read it; chmod 600")
    try:
        words = json.loads(raw.decode("ascii"))
        ticket, seal = (decode_blob(words[name]) for name in ("ticket", "seal"))
        assert isinstance(ticket, bytes)
        assert isinstance(seal, bytes)
        return Keys(Ed25519PrivateKey.from_private_bytes(ticket), X25519PrivateKey.from_private_bytes(seal))
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise Unavailable(f"key file {path}: holds no keys of ours; runs that it began cannot go on") from error


def _write(path: Path, keys: Keys) -> None:
    """Write a whole file or none: written beside, synced, then linked. Of two processes the first one wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({name: encode_blob(getattr(keys, name).private_bytes_raw()) for name in ("ticket", "seal")})
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        _link(beside, path)
    finally:
        beside.unlink()


def _link(beside: Path, path: Path) -> None:
    try:
        os.link(beside, path)
    except FileExistsError:
        return
