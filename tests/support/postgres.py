"""Runs a PostgreSQL server for the tests: in a temporary folder, on loopback, removed afterwards."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql

ACCOUNT = "postgres"
"""PostgreSQL refuses to run as root; Debian's package makes this account."""


def programs() -> Path:
    """Return the folder of `initdb` and `pg_ctl`. Raises FileNotFoundError, which says how to get them."""
    on_path = shutil.which("initdb")
    debian = [program.parent for program in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    folders = [Path(on_path).parent] if on_path else sorted(debian, key=lambda folder: float(folder.parent.name))
    if not folders:
        raise FileNotFoundError("these tests need PostgreSQL: make system-packages")
    return folders[-1]


def _call(folder: Path, *command: str) -> None:
    """Run one of PostgreSQL's programs, not as root. Raises AssertionError with its output if it fails."""
    user = ACCOUNT if os.geteuid() == 0 else None
    with (folder / "said").open("wb") as log:  # a pipe would be kept open by the server that pg_ctl starts
        program = str(programs() / command[0])
        done = subprocess.run([program, *command[1:]], cwd=folder, user=user, stdout=log, stderr=log, check=False)
    assert done.returncode == 0, (folder / "said").read_text("utf-8", errors="replace")


@contextmanager
def postgres() -> Iterator[str]:
    """Yield the URL of a running server without its database: append one's name."""
    with tempfile.TemporaryDirectory() as made:  # pytest's own folders are closed to all other accounts
        home = Path(made)
        if os.geteuid() == 0:
            account = pwd.getpwnam(ACCOUNT)
            os.chown(home, account.pw_uid, account.pw_gid)
        yield from _running(home)


def _running(home: Path) -> Iterator[str]:
    _call(home, "initdb", "--pgdata", "data", "--auth", "trust", "--username", ACCOUNT, "--no-sync", "-E", "UTF8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = f"-p {port} -k {home} -c listen_addresses=127.0.0.1"  # all else is PostgreSQL's default
    _call(home, "pg_ctl", "--pgdata", "data", "--wait", "--log", "log", "--options", options, "start")
    try:
        yield f"postgresql://{ACCOUNT}@127.0.0.1:{port}"
    finally:
        _call(home, "pg_ctl", "--pgdata", "data", "--mode", "immediate", "stop")


def create_database(server: str, name: str) -> str:
    """Return the URL of a new database."""
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return f"{server}/{name}"
