"""Reads and shows what a caller gave: bounded files, settings by option or variable, addresses without passwords.

`print_error` is the one place where a command writes an error.

The command line imports it at every start. It imports nothing that takes long.
"""

import errno
import os
import re
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar
from urllib.parse import urlsplit

from distrust.common.errors import BadParameter, ProtocolError, Unavailable, exit_status, without_controls

T = TypeVar("T")

MOST_TOML = 16 * 2**20
"""Bytes of the longest run file, experiment or environment: about a hundred thousand actions of ten numbers."""

MOST_TABLE = 2**30
"""Bytes of the longest table: CSV of an environment, rows of a sweep. Memory holds all of its rows."""

MOST_TOKEN = 4096  # bytes of a token's file
PIECE = 2**20  # bytes that are read at once of a file that grows

NO_ADDRESS = "must be an address such as http://127.0.0.1:8701"
"""Refusal of a setting that is no address of a service."""

_OPTIONS = {
    "clients": "n",
    "server_url": "server",
    "shuffler_url": "shuffler",
    "aggregator_url": "aggregator",
    "report": "json",
    "intermediary": "via",
    "counter_example": "broken",
}
"""Fields whose option has another name. Options of a fleet may also be typed by its settings' names."""

NO_OPTION = "no such option{near}; `{command} -h` lists them"
NO_VALUE = "needs a value"

_PASSW = "".join(f"(?:{sign}|%{ord(sign):x}|%{ord(sign.upper()):x})" for sign in "passw")
_SIGN = r"[\w%.+-]"  # of a query's key
_IN_QUERY = re.compile(rf"((?<!{_SIGN})(?:(?!{_PASSW}){_SIGN})*+{_PASSW}{_SIGN}*+=)[^&]+", re.IGNORECASE)
"""Matches keys for passwords, such as sslpassword, also where signs of theirs are percent-encoded.

It looks at each key once, from its first sign on: a text of another party may be made to take long.
"""

_BEFORE_HOST = re.compile(r"(\bhttps?)?(://[^:]*):(.*)@", re.DOTALL | re.IGNORECASE)
"""Matches up to the last @: a password may hold any sign, and so may a database's user. Slow in a text without an @."""

_PORT = re.compile(r"\d{1,5}/")


def open_file(path: Path | str, most: int | None, flags: int = 0, folder: int | None = None) -> BinaryIO:
    """Return a regular file, open to read. It never waits: a pipe, a device or a folder is refused.

    most    bytes that the file may have. None: the caller reads it piece by piece.
    flags   of `os.open`, such as O_NOFOLLOW, beside those to read.
    folder  a descriptor of the folder in which the path is a name.
    Raises  OSError, whose `strerror` says what the file must be.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags, dir_fd=folder)
    except ValueError as error:  # a zero byte in the name
        raise OSError(errno.EINVAL, "must be the name of a file", str(path)) from error
    try:
        _check_regular(os.fstat(handle), path, most)
    except OSError:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb")


def _check_regular(facts: os.stat_result, path: Path | str, most: int | None) -> None:
    if stat.S_ISDIR(facts.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "must be a file, and is a pipe or a device", str(path))
    if most is not None and facts.st_size > most:
        raise _too_long(path, most)


def read_file(path: Path | str, most: int, flags: int = 0, folder: int | None = None) -> tuple[bytes, os.stat_result]:
    """Return the bytes and the facts of a regular file, which may grow meanwhile. Arguments and errors: `open_file`."""
    with open_file(path, most, flags, folder) as file:
        facts = os.fstat(file.fileno())
        raw = file.read(min(most, max(facts.st_size, PIECE)) + 1)
        while len(raw) <= most and (more := file.read(PIECE)):
            raw += more
    if len(raw) > most:
        raise _too_long(path, most)
    return raw, facts


def read_token(field: str, path: Path) -> str:
    """Return the token in a file, or in a pipe: another program may print it. Raises BadParameter, naming the field."""
    try:
        with path.open("rb") as file:
            token = file.read(MOST_TOKEN + 1).decode("utf-8").strip()
    except OSError as error:
        raise BadParameter(field, str(path), f"{error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadParameter(field, str(path), "must be text") from error
    if not token:
        raise BadParameter(field, str(path), "must not be empty")
    if len(token) > MOST_TOKEN:
        raise BadParameter(field, str(path), f"must hold one token of at most {MOST_TOKEN} signs")
    return token


class Watched(Generic[T]):
    """The value of a file. This object reads the file again after a change. Several threads may use it.

    A look costs one `stat`, also while the file is damaged. A pipe is read once: another program may print a token into
    it.

    read    returns the file's value, and raises BadParameter, as the first read does.
    whose   the file in the words of a refusal.
    """

    def __init__(self, path: Path, read: Callable[[], T], whose: str) -> None:
        self._path, self._read, self._whose = path, read, whose
        self._lock = threading.Lock()
        self._seen = _facts(path)  # before it is read: a change meanwhile shows at the next look
        self._once = not path.is_file()
        self._value = read()
        self._fault: BadParameter | None = None

    def value(self) -> T:
        """Return what the file says now. Raises Unavailable when it has gone, or says what cannot be used."""
        with self._lock:
            facts = self._seen if self._once else _facts(self._path)
            if facts is None or facts != self._seen:
                self._seen = self._fault = None
                try:
                    self._value = self._read()
                except BadParameter as error:
                    self._fault = error
                if self._fault is None or not isinstance(self._fault.__cause__, OSError):
                    self._seen = facts  # what the file says changes with the file; a fault of the system need not
            if self._fault is not None:
                raise Unavailable(f"{self._whose} cannot be read: this service admits no caller by it") from self._fault
            return self._value


def _facts(path: Path) -> tuple[int, ...] | None:
    """Return what changes with a file's contents; None for no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _too_long(path: Path | str, most: int) -> OSError:
    return OSError(errno.EFBIG, f"has more than {most:,} bytes", str(path))


def as_typed(line: str, field: str, words: Sequence[str], variables: Iterable[str] = ()) -> str:
    """Return an error's line that begins with its field. A field that was given as an option is named so: `--epsilon`.

    words      the command line after the program's name.
    variables  names of environment variables. The field's own, `DISTRUST_…`, names it where no option does.
    """
    table, _, last = field.rpartition(".")
    flags, variable = flags_of(last), f"DISTRUST_{last.upper()}"
    for word in words:
        flag = word.partition("=")[0]
        if flag in flags and not (table and flag == "--name"):  # a mechanism's or a policy's name is no option's
            return flag + line.removeprefix(field)
    return variable + line.removeprefix(field) if variable in map(str.upper, variables) else line


def option(field: str) -> str:
    """Return the option of a field of the command line."""
    return flags_of(field)[0]


def flags_of(field: str) -> tuple[str, ...]:
    """Return all options of a field: the one that help shows, and the field's own name."""
    names = dict.fromkeys((_OPTIONS.get(field, field), field))
    return tuple("--" + name.replace("_", "-") for name in names)


def print_error(error: ProtocolError, words: Sequence[str], variables: Iterable[str] = ()) -> int:
    """Write an error on stderr in one line, its code before its detail, and return the exit status.

    words, variables  as `as_typed` takes them: a bad value's field is named as it was given.
    """
    line, field = error.detail, error.extra.get("field")
    if isinstance(error, BadParameter) and isinstance(field, str):  # a service's may lack it
        line = as_typed(line, field, words, variables)
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    code = f"\x1b[31m{error.code}\x1b[0m" if coloured else error.code
    sys.stderr.write(f"{code} {without_controls(line)}\n")
    return exit_status(error)


def check_address(field: str, text: str) -> str:
    """Return the address of a service. Raises BadParameter, naming the field, for a text that is none."""
    try:
        parts = urlsplit(text)
        fits = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, a broken IPv6 address
        fits = False
    if not fits:
        raise BadParameter(field, without_passwords(text), NO_ADDRESS)
    return text


def without_passwords(text: str) -> str:
    """Return a text with *** in place of the passwords of its addresses, for logs and tracebacks."""
    text = _IN_QUERY.sub(r"\1***", text)
    before, at, host = text.rpartition("@")
    return _BEFORE_HOST.sub(_without_user, before + at) + host if at else text


def _without_user(match: re.Match[str]) -> str:
    scheme, user, rest = match.groups("")
    if scheme and _PORT.match(rest):  # an @ in the path of http://host:port/path
        return match[0]
    return f"{scheme}{user}:***@"


def hide_passwords(arguments: Iterable[tuple[str | None, Any]]) -> Iterator[tuple[str | None, Any]]:
    """Yield the names and values of a model's `repr` without the passwords of addresses."""
    for name, value in arguments:
        yield name, without_passwords(value) if isinstance(value, str) else value
