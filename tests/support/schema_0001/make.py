"""Makes the databases of this folder by the code that had their schema. A tool; no test calls it.

    git worktree add OLD 6102dc19
    PYTHONPATH=OLD/src:OLD python tests/support/schema_0001/make.py OLD

The three services of that commit play two runs to their end, one by each intermediary. Two more runs are stopped while
the first clients of a cohort have sent messages and the others have not. That is done on SQLite and on PostgreSQL. Each
database becomes SQL: PARTY.sqlite.sql and PARTY.postgresql.sql. The operator of these databases does not exist, and
neither do their clients' secrets.
"""

import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import httpx

import distrust
from distrust.lab.play.run_file import RunFile, parse
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import NAMES, Stack
from tests.support.http_runs import over_http
from tests.support.postgres import create_database, postgres

HERE = Path(__file__).resolve().parent
LONGEST_SECONDS = 60.0  # that the first messages of a run take
SESSION = re.compile(r"--|SET |\\|SELECT pg_catalog\.set_config")
WORLD = '{"name": "bernoulli", "means": [0.05, 0.95], "seed": 7}'


def run_file(name: str, mechanism: str, horizon: int) -> RunFile:
    """Return a run of two arms without seeded noise."""
    return parse(
        f"""
run = "{name}"
horizon = {horizon}
[policy]
first_batch = 2
failure = 0.5
[mechanism]
name = "{mechanism}"
epsilon = 8.0
{"delta = 1e-5" if mechanism.startswith("shuffled") else ""}
[intermediary]
dropout = 0.0
corrupt = 0.0
stage_seconds = 600.0
[environment]
name = "bernoulli"
means = [0.05, 0.95]
seed = 7
[fleet]
processes = 1
"""
    )


class ElsewhereStack(Stack):
    """A stack whose services have other databases than files of its folder."""

    databases: Mapping[str, str] = {}

    def _environment(self, name: str) -> dict[str, str]:
        more = {"DISTRUST_DATABASE": self.databases[name]} if self.databases else {}
        keys = {"DISTRUST_KEYS": str(self.data_dir.file("server").with_suffix(".keys"))} if name == "server" else {}
        return {**super()._environment(name), **more, **keys}


def play(folder: Path, databases: Mapping[str, str]) -> None:
    """Play the four runs. Empty `databases`: SQLite files in the folder."""
    stack = ElsewhereStack(DataDir(folder), 0)
    stack.databases = databases
    with stack:
        for name, mechanism in (("summed", "distributed-polya"), ("shuffled", "shuffled-binomial")):
            result = over_http(stack, run_file(name, mechanism, 24))
            assert result.fault is None, result.fault
        for name, mechanism in (("open-summed", "distributed-polya"), ("open-shuffled", "shuffled-binomial")):
            begin(stack, run_file(name, mechanism, 200))


def begin(stack: Stack, file: RunFile) -> None:
    """Start a run and a fleet, and stop the fleet when a cohort has its first messages."""
    token = {"Authorization": f"Bearer {stack.urls.token}", "Content-Type": "application/json"}
    httpx.post(f"{stack.urls.server}/v1/runs", content=file.config.canonical(), headers=token).raise_for_status()
    urls = {f"DISTRUST_{name.upper()}_URL": getattr(stack.urls, name) for name in NAMES}
    words = ["--run", file.config.run, "--environment", WORLD, "--block", "1", "--in-flight", "3", "--patience", "5"]
    command = [sys.executable, "-m", "distrust.client", *words]
    fleet = subprocess.Popen(command, env={**os.environ, **urls}, stderr=subprocess.DEVNULL)
    via = stack.urls.shuffler if file.config.run == "open-shuffled" else stack.urls.aggregator
    end = time.monotonic() + LONGEST_SECONDS
    try:
        while not begun(via, file.config.run, stack):
            assert fleet.poll() is None, "the fleet has ended"
            assert time.monotonic() < end, "no message came"
            time.sleep(0.01)
    finally:
        fleet.kill()
        fleet.wait()


def begun(url: str, run: str, stack: Stack) -> bool:
    """Return whether a cohort of the run has a client's message."""
    operator, inspector = ({"Authorization": f"Bearer {one}"} for one in (stack.urls.token, stack.urls.inspector))
    listed = httpx.get(f"{url}/v1/cohorts", params={"run": run}, headers=operator).raise_for_status().json()["cohorts"]
    pages = (f"{url}/v1/cohorts/{entry['cohort']}/messages" for entry in listed)
    return any(httpx.get(page, headers=inspector).raise_for_status().json()["messages"] for page in pages)


def write_sqlite(folder: Path) -> None:
    """Write the databases of a folder as SQL."""
    for name in NAMES:
        with closing(sqlite3.connect(folder / f"{name}.sqlite3")) as database:
            lines = "\n".join(database.iterdump())
        (HERE / f"{name}.sqlite.sql").write_text(f"{lines}\n", "utf-8")


def write_postgresql(databases: Mapping[str, str]) -> None:
    """Write these databases as SQL, without comments, owners and settings of a session."""
    for name, url in databases.items():
        command = ["pg_dump", "--inserts", "--no-owner", "--no-privileges", "--no-comments", url]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        lines = [line for line in text.splitlines() if line and not SESSION.match(line)]
        (HERE / f"{name}.postgresql.sql").write_text("\n".join([*lines, ""]), "utf-8")


@contextmanager
def databases() -> Iterator[Mapping[str, str]]:
    """Yield the URLs of three new databases of a PostgreSQL that runs meanwhile."""
    with postgres() as server:
        yield {name: create_database(server, name) for name in NAMES}


if __name__ == "__main__":
    assert Path(str(distrust.__file__)).resolve().is_relative_to(Path(sys.argv[1]).resolve()), distrust.__file__
    with tempfile.TemporaryDirectory() as made:
        play(Path(made), {})
        write_sqlite(Path(made))
    with tempfile.TemporaryDirectory() as made, databases() as urls:
        play(Path(made), urls)
        write_postgresql(urls)
