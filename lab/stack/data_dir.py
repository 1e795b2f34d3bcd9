"""Names the files of a local stack's data folder: databases, logs, tokens, and the addresses of running services."""

import errno
import fcntl
import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distrust.common.errors import LATER, BadParameter, Unavailable, escape_controls
from distrust.common.inputs import MOST_TOKEN, read_file

DEFAULT = Path(".distrust")
FLEET = "fleet"  # the name of the participation token of a folder's own fleets
LEAST_FREE = 16 * 2**20  # bytes; on a full disk services could not even log what is wrong
MOST_STACK = 64 * 1024  # bytes of stack.json


@contextmanager
def writing(path: Path, option: str = "data") -> Iterator[None]:
    """Turn an OSError while writing into BadParameter, naming the option, or into Unavailable for a full disk.

    option  the field that the path comes from, without dashes.
    """
    try:
        yield
    except OSError as error:
        if error.errno in LATER:
            why = f"cannot write {path}: {error.strerror}; mend that, or choose another --{option}"
            raise Unavailable(why) from error
        raise BadParameter(option, str(path), _unwritable(path, error)) from error


def _unwritable(path: Path, error: OSError) -> str:
    """Return why a path cannot be written, naming the folder that is at fault."""
    folder = next(filter(_there, path.parents), path.parent)
    match error.errno:
        case errno.ENOENT:
            return f"the folder {path.parent} is not there"
        case errno.EISDIR:
            return "is a folder, and must be a file"
        case errno.ENOTDIR | errno.EEXIST:
            return f"{path if _there(path) else folder} is no folder"
        case errno.EACCES | errno.EPERM:
            return f"this user may not write in the folder {folder}"
        case errno.EROFS:
            return f"the folder {folder} is on a disk that is read only"
    return f"cannot be written in the folder {folder} ({error.strerror})"


def _there(path: Path) -> bool:
    """Return whether a path exists, as far as this user may see."""
    try:
        return path.exists()
    except OSError:
        return False


def check_target(path: Path, option: str) -> None:
    """Raise BadParameter, naming the option, unless a file can be written there; before hours of work, not after."""
    with writing(path, option):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        os.scandir(path.parent).close()
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def write_result(text: str, target: str) -> None:
    """Write a command's result, which is JSON, to a file, or to stdout for `-`."""
    text = escape_controls(text)
    if target == "-":
        sys.stdout.write(text)
        return
    with writing(Path(target), "json"):
        Path(target).write_text(text, "utf-8")


def private(path: str, flags: int) -> int:
    """Return the descriptor of a file for its owner only, also if it existed with other rights; for `opener=`."""
    handle = os.open(path, flags, 0o600)
    os.fchmod(handle, 0o600)
    return handle


@dataclass(frozen=True, slots=True)
class DataDir:
    """Paths and contents of one data folder."""

    path: Path

    @property
    def token_file(self) -> Path:
        return self.path / "operator.token"

    @property
    def inspector_file(self) -> Path:
        """Return the path of the inspector's token, in a folder of its own.

        What the server may read need not hold it.
        """
        return self.path / "inspector" / "inspector.token"

    @property
    def fleet_file(self) -> Path:
        """Return the path of the participation token of this folder's fleets, alone in a folder of its own."""
        return self.path / FLEET / f"{FLEET}.token"

    @property
    def participants_file(self) -> Path:
        """Return the path of the operator's list of who may request slots. It holds no token."""
        return self.path / "participants.json"

    @property
    def stack_file(self) -> Path:
        return self.path / "stack.json"

    @property
    def memory_file(self) -> Path:
        """Return the path of the file in which the fleets of this machine note which clients have taken part."""
        return self.file("clients")

    def log(self, name: str) -> Path:
        return self.path / "logs" / f"{name}.log"

    def file(self, name: str) -> Path:
        """Return the path of a service's database."""
        return self.path.resolve() / f"{name}.sqlite3"

    def database(self, name: str) -> str:
        """Return the service's database as an SQLAlchemy URL."""
        return f"sqlite:///{self.file(name)}"

    def make(self) -> None:
        """Make the folder, for its owner only: databases hold what each party saw."""
        with writing(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.path / "logs").mkdir(mode=0o700, exist_ok=True)

    def check_space(self) -> None:
        """Raise Unavailable before the disk is full, so that nothing committed is lost and the run can go on later."""
        free = shutil.disk_usage(self.path).free
        if free < LEAST_FREE:
            raise Unavailable(
                f"the disk that holds {self.path} is full: {free / 2**20:.1f} MiB are free, "
                f"and {LEAST_FREE / 2**20:g} are needed; make room, or choose another --data"
            )

    def make_tokens(self) -> None:
        """Make the operator's and the inspector's token once: 256 bits from the CSPRNG, readable by their owner only.

        The inspector's token opens the intermediaries' transcripts, which show which client sent what. Raises
        BadParameter for a file that another user made, who may know the token.
        """
        for path in (self.token_file, self.inspector_file):
            if not path.exists():
                write_secret(path, secrets.token_urlsafe(32))
        self.token()
        self.inspector_token()

    def token(self) -> str:
        """Return the operator's token. Raises BadParameter where no stack has ever run, and as `inspector_token`."""
        return self._read(self.token_file, "operator")

    def inspector_token(self) -> str:
        """Return the inspector's token. Raises BadParameter where no stack has ever run.

        It raises BadParameter also for a link, for what is no file, and for a file of another user than this one and
        root. A folder that another user made could otherwise have a file of this user's sent to a service as a token.
        """
        return self._read(self.inspector_file, "inspector")

    def fleet_token(self) -> str:
        """Return the participation token of this folder's fleets. Raises BadParameter as `inspector_token` does."""
        return self._read(self.fleet_file, "participation")

    def write_stack(self, stack: dict[str, Any]) -> None:
        """Write the addresses of the running stack: a reader finds all of them, or the file of before."""
        part = self.stack_file.with_suffix(".part")
        with writing(self.stack_file):
            part.unlink(missing_ok=True)
            with open(part, "x", encoding="utf-8", opener=private) as file:
                file.write(json.dumps(stack, indent=2) + "\n")
            part.replace(self.stack_file)

    def stack(self) -> Any:
        """Return what `write_stack` wrote, or any other JSON; None for none.

        Raises BadParameter for a file as `inspector_token` does, Unavailable when the stack has ended meanwhile.
        """
        try:
            return json.loads(self.read_own(self.stack_file, MOST_STACK))
        except FileNotFoundError as error:
            raise Unavailable(f"the stack of {self.path} has ended; try again") from error
        except (ValueError, RecursionError):
            return None

    def in_use(self) -> bool:
        """Return whether a stack holds this folder now."""
        if not os.access(self.stack_file, os.F_OK):
            return False
        try:
            # A pipe of this name, which no stack of ours made, would keep an open without O_NONBLOCK waiting.
            handle = os.open(self.path / "lock", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # no stack has ever run here, or none that this user may see
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(handle)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder: two stacks must not share databases. The kernel unlocks it when the process ends.

        Raises Unavailable when another stack holds it.
        """
        lock = self.path / "lock"
        with writing(lock):
            handle = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise Unavailable(f"{self.path} is in use by another stack; stop it, or give another --data") from error
        try:
            yield
        finally:
            os.close(handle)

    def _read(self, path: Path, whose: str) -> str:
        """Return the token in a file of this folder."""
        try:
            return self.read_own(path, MOST_TOKEN).decode("ascii").strip()
        except FileNotFoundError as error:
            why = f"nothing has run there: no {whose} token ({error.strerror})"
            raise BadParameter("data", str(self.path), why) from error
        except UnicodeDecodeError as error:
            raise BadParameter("data", str(self.path), f"its {path.name} holds no token") from error

    def read_own(self, path: Path, most: int) -> bytes:
        """Return the bytes of a file that this user or root made in this folder, or in a folder of it.

        Raises FileNotFoundError; BadParameter for what another user made, for a link, and for what is no file.
        """
        direct = os.O_DIRECTORY | os.O_CLOEXEC | (0 if path.parent == self.path else os.O_NOFOLLOW)
        try:
            folder = os.open(path.parent, direct)
            try:
                raw, facts = read_file(path.name, most, os.O_NOFOLLOW, folder)
            finally:
                os.close(folder)
        except FileNotFoundError:
            raise
        except OSError as error:
            link = error.errno in {errno.ELOOP, errno.ENOTDIR}  # the second of a link in place of the file's folder
            why = "is a link, which may lead to another folder's file" if link else error.strerror
            raise BadParameter("data", str(self.path), f"its {path.name} cannot be used: it {why}") from error
        if facts.st_nlink != 1 or facts.st_uid not in {0, os.geteuid()}:
            fault = "is a file with several names" if facts.st_nlink != 1 else f"belongs to user {facts.st_uid}"
            why = f"its {path.name} cannot be used: it {fault}, and must be a file that this user or root made there"
            raise BadParameter("data", str(self.path), why)
        return raw


def write_secret(path: Path, text: str, option: str = "data", *, replace: bool = False) -> None:
    """Write one text to a file for its owner only: a reader finds all of it. The file's folder is made, too.

    Raises BadParameter, naming the option, for a file that exists, without `replace`.
    """
    part = path.with_suffix(".part")
    if path.exists() and not replace:
        raise BadParameter(option, str(path), "is there already, and a secret is not overwritten")
    with writing(path, option):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as output:
            output.write(text + "\n")
        part.replace(path)
