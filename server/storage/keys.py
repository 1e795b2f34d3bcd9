"""Keeps the private keys of open runs: one 0600 file a run, in a folder of this server alone, until the run ends.

A file holds the key that signs the run's tickets, the key that opens its sealed records, and the secret of its
analyzer's noise. It is on the disk before the run is committed, so that no run is without keys. It is destroyed once
the run's end is committed. The database has the public halves alone.

Log events: `keys_destroyed`, a key file was destroyed; `keys_kept`, one of a run that is over could not be, and the
next start tries again.
"""

import fcntl
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from sqlalchemy.engine import make_url

from distrust.common.errors import RunFailed, Unavailable
from distrust.common.inputs import read_file
from distrust.common.protocol.crypto.context import RUN_ID

_SECRET = 32  # bytes of each of the three secrets
_WHOLE = 3 * _SECRET + hashlib.sha256().digest_size  # bytes of a key file: the secrets and their SHA-256
_MOST = 4096  # bytes that are read of one
_SUFFIX = ".key"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OLD = "whose runs have all ended: remove it, and no record that was sealed to it opens any more"
_MEND = "name its folder in DISTRUST_KEYS, or make an empty one (mode 700), and the open runs end as failed"

_log = structlog.get_logger("distrust.server")


@dataclass(frozen=True, slots=True)
class PublicKeys:
    """The public halves: raw Ed25519 and X25519 keys, 32 bytes each."""

    ticket: bytes
    seal: bytes


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """The public part of the random numbers that the server draws as it makes a run. The run's row has it.

    run_id  16 bytes: a run that is made anew from the same run file is another run.
    keys    the public halves of its keys.
    """

    run_id: bytes
    keys: PublicKeys


@dataclass(frozen=True, slots=True)
class Keys:
    """The private keys of one run. noise: 32 bytes; the analyzer's noise follows from it and from the batch."""

    ticket: Ed25519PrivateKey = field(repr=False)
    seal: X25519PrivateKey = field(repr=False)
    noise: bytes = field(repr=False)

    @property
    def public(self) -> PublicKeys:
        return PublicKeys(self.ticket.public_key().public_bytes_raw(), self.seal.public_key().public_bytes_raw())


def new_keys() -> Keys:
    """Return new keys from the operating system's CSPRNG."""
    return Keys(Ed25519PrivateKey.generate(), X25519PrivateKey.generate(), secrets.token_bytes(_SECRET))


def new_run_id() -> bytes:
    """Return the id of a new run."""
    return secrets.token_bytes(RUN_ID)


def folder_for(database_url: str) -> Path:
    """Return the folder of a server's keys, unless it is configured. No two databases have the same one.

    It is beside a SQLite database, as NAME.keys with the whole name of its file. For a database on another server it
    is below the working directory, and has that database's name, host and port.
    """
    url = make_url(database_url)
    if url.get_backend_name() == "sqlite" and url.database:
        return Path(f"{url.database}.keys")
    host, port = url.host or url.query.get("host", "local"), url.port or url.query.get("port", 5432)
    name, schema = url.database or url.username or "", url.query.get("options", "")
    return Path(".distrust") / f"{quote(f'{name}{schema}', safe='')}@{quote(str(host), safe='')}-{port}.keys"


class KeyFolder:
    """The key files of a server's open runs, each named by R, the run's digest. Only a run's own keys are in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None

    def make(self, running: Collection[str]) -> None:
        """Make the folder on first use.

        running  names of the runs that the database has as open: without the folder they would all end.
        Raises   Unavailable, which names the folder.
        """
        if self.path.is_file():
            raise Unavailable(f"key folder {self.path}: it is the key file of an earlier version, {_OLD}")
        try:
            if not self.path.exists():
                if running:
                    raise Unavailable(f"key folder {self.path}: not there, and run {min(running)} is open: {_MEND}")
                self.path.mkdir(mode=0o700, parents=True)
                _sync(self.path.parent)
            if self.path.stat().st_mode & _OTHERS:
                raise Unavailable(f"key folder {self.path}: others may use it; chmod 700")
        except OSError as error:
            raise Unavailable(f"key folder {self.path}: {error.strerror}") from error

    def hold(self) -> None:
        """Lock the folder until `close`, or the end of this process: two servers would destroy each other's keys.

        Raises Unavailable where another process has locked it.
        """
        try:
            self._handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            held = "in use by another server: give this one another DISTRUST_KEYS"
            why = held if isinstance(error, BlockingIOError) else error.strerror
            raise Unavailable(f"key folder {self.path}: {why}") from error

    def close(self) -> None:
        """Unlock the folder."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def write(self, run_digest: bytes, keys: Keys) -> None:
        """Write the keys of a new run, and wait until the disk has the file and its name. Raises Unavailable."""
        file = self.file(run_digest)
        raw = keys.ticket.private_bytes_raw() + keys.seal.private_bytes_raw() + keys.noise
        try:
            _fill(file, "xb", raw + hashlib.sha256(raw).digest())
            _sync(self.path)
        except OSError as error:
            raise Unavailable(f"key file {file}: {error.strerror}") from error

    def read(self, run_digest: bytes, public: PublicKeys) -> Keys:
        """Return the keys of an open run. Raises RunFailed for lost or damaged ones, Unavailable as `read_keys`."""
        try:
            keys = read_keys(self.file(run_digest))
        except FileNotFoundError as error:
            why = "the run had ended before its database was restored, or the file was lost"
            raise RunFailed(f"its key file is gone: {why}. Nothing more of the run is released") from error
        if keys is None or keys.public != public:
            raise RunFailed("its key file is damaged. Nothing more of the run is released")
        return keys

    def destroy(self, run_digest: bytes) -> None:
        """Destroy the keys of a run whose end is committed. What fails is logged, and tried again at the next start."""
        self._destroy(self.file(run_digest))

    def keep(self, running: Collection[bytes]) -> None:
        """Destroy all keys but those of these runs: a crash may have left keys of a run that is over, or never was."""
        kept = {self.file(run_digest).name for run_digest in running}
        for file in self.path.glob(f"*{_SUFFIX}"):
            if file.name not in kept:
                self._destroy(file)

    def file(self, run_digest: bytes) -> Path:
        """Return the key file of the run with digest R."""
        return self.path / f"{run_digest.hex()}{_SUFFIX}"

    def _destroy(self, file: Path) -> None:
        try:
            if _remove(file):
                _log.info("keys_destroyed", file=str(file))
        except OSError as error:
            _log.error("keys_kept", file=str(file), why=error.strerror)


def read_keys(file: Path) -> Keys | None:
    """Return the keys in a file; None for a damaged one.

    Raises FileNotFoundError; Unavailable for a file that others may read, or that this process may not.
    """
    try:
        raw, facts = read_file(file, _MOST)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unavailable(f"key file {file}: {error.strerror}") from error
    if facts.st_mode & _OTHERS:
        raise Unavailable(f"key file {file}: others may read it; chmod 600")
    private, checksum = raw[: 3 * _SECRET], raw[3 * _SECRET :]
    if hashlib.sha256(private).digest() != checksum:
        return None
    ticket, seal, noise = (private[at : at + _SECRET] for at in range(0, 3 * _SECRET, _SECRET))
    return Keys(Ed25519PrivateKey.from_private_bytes(ticket), X25519PrivateKey.from_private_bytes(seal), noise)


def destroy_first_keys(database_url: str) -> Path | None:
    """Destroy the one key file that 6102dc19 kept beside a SQLite database, and return it; None where there is none.

    Its runs are over once the database is migrated. Raises Unavailable for a file that cannot be removed.
    """
    url = make_url(database_url)
    if url.get_backend_name() != "sqlite" or not url.database:
        return None
    file = Path(url.database).with_suffix(".keys")
    if file.is_symlink() or not file.is_file():
        return None
    try:
        raw, _ = read_file(file, _MOST)
        if set(json.loads(raw)) != {"ticket", "seal"}:
            return None
        _remove(file)
    except OSError as error:
        raise Unavailable(f"key file {file}: {error.strerror}") from error
    except (ValueError, TypeError):  # no key file of ours
        return None
    return file


def _remove(file: Path) -> bool:
    """Overwrite a file's bytes, remove it, and wait for the disk. Copies of it, and of its blocks, are not reached.

    Return whether it was there.
    """
    try:
        _fill(file, "r+b", bytes(file.stat().st_size))
    except FileNotFoundError:
        return False
    except OSError:  # it can still be removed, as on a full disk that copies what is overwritten
        pass
    file.unlink()
    _sync(file.parent)
    return True


def _fill(file: Path, mode: str, raw: bytes) -> None:
    """Write bytes at the file's beginning, and wait until the disk has them. mode: of `open`."""
    with open(file, mode, opener=_private) as output:
        output.write(raw)
        output.flush()
        os.fsync(output.fileno())


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
