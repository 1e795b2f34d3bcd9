"""Implements `distrust doctor`: what this machine lacks."""

import json as json_text
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

import typer

from distrust.common.errors import FAILED, BadParameter
from distrust.common.extras import EXTRAS
from distrust.common.protocol.web.tls import CALLER_FILES, caller_context
from distrust.lab.cli.console import JsonOption, StackOption, examples, out
from distrust.lab.stack.data_dir import DEFAULT, LEAST_FREE, DataDir, write_result
from distrust.lab.stack.stack import BASE_PORT

app = typer.Typer(rich_markup_mode=None, add_completion=False)

State = Literal["ok", "warn", "broken"]

PROGRAMS = {
    "initdb": "tests with PostgreSQL",
    "chromium": "tests of the pages",
    "haproxy": "tests of a proxy",
    "openssl": "the test of an authority",
}
"""Programs of Debian packages that some tests start, and which tests."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `doctor`."""

    subject: str
    state: State
    detail: str


@app.command("doctor", epilog=examples("distrust doctor", "distrust doctor --data /srv/distrust --json -"))
def doctor_command(*, data: StackOption = DEFAULT, json: JsonOption = None) -> None:
    """Check this machine: Python, libraries, ports, disk, tokens. Exit 1 if something is broken."""
    checks = [check for look in CHECKS for check in look(DataDir(data))]
    if json != "-":
        for check in checks:
            out.print(f"{check.state:7} {check.subject:18} {check.detail}", markup=False)
    if json is not None:
        write_result(json_text.dumps([asdict(check) for check in checks], indent=2) + "\n", json)
    if any(check.state == "broken" for check in checks):
        raise typer.Exit(FAILED)


def _python(_: DataDir) -> Iterator[Check]:
    fine = sys.version_info >= (3, 11)
    yield Check("Python", "ok" if fine else "broken", f"{platform.python_version()} (3.11 or newer is needed)")


def _libraries(_: DataDir) -> Iterator[Check]:
    for line in requires("distrust") or ():
        name = line.partition(";")[0].split("[")[0]
        for sign in "<>=!~ ":
            name = name.partition(sign)[0]
        extra = line.partition("extra == ")[2].strip("\"' ")
        if extra in ("", *EXTRAS.values()):
            try:
                yield Check(name, "ok", version(name))
            except PackageNotFoundError:
                lacking = f"pip install 'distrust[{extra}]'" if extra else "pip install distrust"
                yield Check(name, "warn" if extra else "broken", f"is not installed: {lacking}")


def _ports(_: DataDir) -> Iterator[Check]:
    for port in range(BASE_PORT, BASE_PORT + 3):
        with socket.socket() as probe:
            free = probe.connect_ex(("127.0.0.1", port)) != 0
        detail = "free" if free else "in use: `distrust up` needs --port-base, or its services run already"
        yield Check(f"port {port}", "ok" if free else "warn", detail)


def _folder(data_dir: DataDir) -> Iterator[Check]:
    path = data_dir.path
    there = path if path.exists() else path.resolve().parent
    if not os.access(there, os.W_OK):
        yield Check("data", "broken", f"{there} cannot be written")
        return
    free = shutil.disk_usage(there).free
    state: State = "ok" if free >= LEAST_FREE else "broken"
    yield Check("disk", state, f"{free / 2**30:.1f} GiB free where {path} is; {LEAST_FREE / 2**20:g} MiB are needed")
    for file in (data_dir.token_file, data_dir.inspector_file, data_dir.fleet_file):
        if file.exists():
            mode = file.stat().st_mode & 0o777
            closed = mode & 0o077 == 0
            yield Check(file.name, "ok" if closed else "broken", f"mode {mode:o}; only its owner may read it")


def _certificates(_: DataDir) -> Iterator[Check]:
    given = [name for name in CALLER_FILES if os.environ.get(name)]
    try:
        if given:
            caller_context()
    except BadParameter as error:
        yield Check("certificates", "broken", error.detail)
        return
    detail = f"calls to https:// addresses use {', '.join(given) or 'the authorities of the system'}"
    yield Check("certificates", "ok", detail)


def _programs(_: DataDir) -> Iterator[Check]:
    for program, use in PROGRAMS.items():
        versions = Path("/usr/lib/postgresql").glob(f"*/bin/{program}")  # where Debian keeps them, off PATH
        place = shutil.which(program) or next(map(str, versions), None)
        yield Check(program, "ok" if place else "warn", place or f"is not installed; only {use} need it")


CHECKS: Iterable[Callable[[DataDir], Iterator[Check]]] = (
    _python,
    _libraries,
    _ports,
    _folder,
    _certificates,
    _programs,
)
