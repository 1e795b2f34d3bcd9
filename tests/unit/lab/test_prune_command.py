"""Tests of `distrust prune`: which runs it chooses, what it prints, and what it refuses."""

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from distrust.common.errors import BadParameter, Conflict, ProtocolError, RunFailed, Unavailable, exit_status
from distrust.common.protocol.run.listing import Tombstone
from distrust.common.protocol.run.progress import RunLine
from distrust.lab.__main__ import app
from distrust.lab.services.connection import Connection

NOW = time.time()
STONE = Tombstone(run="old", run_id=bytes(16), run_digest=bytes(32), state="finished", guarantee=None, pruned=0.0)
URL = ("--server", "http://127.0.0.1:9")


def line(run: str, state: str = "finished", ended: float | None = None) -> RunLine:
    return RunLine.model_validate(
        {"run": run, "state": state, "arms": 2, "horizon": 9, "mechanism": "m", "ended": ended}
    )


@pytest.fixture
def pruned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the runs that the command prunes, of a server with these."""
    runs = [
        line("without-an-end"),
        line("old", ended=NOW - 90_000),
        line("new", "failed", ended=NOW - 3000),
        line("open", "running"),
    ]
    done: list[str] = []

    def prune(_self: Connection, run: str) -> Tombstone:
        done.append(run)
        return STONE.model_copy(update={"run": run})

    monkeypatch.setattr(Connection, "runs", lambda _self: runs)
    monkeypatch.setattr(Connection, "prune", prune)
    return done


def command(*words: str) -> Result:
    return CliRunner().invoke(app, ["prune", *words])


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        (("old",), ["old"]),
        (("--before", "1d"), ["old"]),
        (("--before", "10m"), ["old", "new"]),
        (("--before", "2001-01-31"), []),
        (("--before", "2999-01-31T12:00+01:00"), ["old", "new"]),
    ],
)
def test_a_run_or_all_that_ended_before_a_time_are_pruned_and_none_that_runs(
    pruned: list[str], words: tuple[str, ...], chosen: list[str]
) -> None:
    done = command(*words, *URL, "--json", "-")
    assert (done.exit_code, pruned) == (0, chosen), done.exception
    assert [one["run"] for one in json.loads(done.stdout)["pruned"]] == chosen
    shown = command(*words, *URL).stdout
    told = [f"run {run} was pruned at 1970-01-01 00:00:00 UTC: it finished" for run in chosen]
    assert shown.splitlines() == (told or ["no run ended before 2001-01-31 00:00:00 UTC"])


@pytest.mark.parametrize(("new", "status"), [(Conflict("it runs"), 75), (RunFailed("it failed"), 75), (None, 75)])
def test_a_run_that_cannot_be_pruned_keeps_no_other_waiting_and_the_worst_error_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, pruned: list[str], new: ProtocolError | None, status: int
) -> None:
    refusals: dict[str, ProtocolError | None] = {"old": Unavailable("the shuffler is away"), "new": new}
    whole = Connection.prune

    def prune(self: Connection, run: str) -> Tombstone:
        refusal = refusals[run]
        if refusal is not None:
            raise refusal
        return whole(self, run)

    monkeypatch.setattr(Connection, "prune", prune)
    done = command("--before", "10m", *URL)
    assert (done.exit_code, pruned) == (status, ["new"] if new is None else [])
    assert "run old is not pruned: unavailable the shuffler is away" in done.stderr
    assert done.stdout.startswith("run new was pruned at ") == (new is None)


@pytest.mark.parametrize("words", [(), ("old", "--before", "1d")])
def test_a_name_or_a_time_is_given_and_not_both(pruned: list[str], words: tuple[str, ...]) -> None:
    error = command(*words, *URL).exception
    assert isinstance(error, BadParameter)
    assert (exit_status(error), "or --before: one of both" in error.detail, pruned) == (2, True, [])


@pytest.mark.parametrize("word", ["soon", "7", "-3d", "2027-13-01", "1234567d"])
def test_a_time_that_is_none_is_refused(pruned: list[str], word: str) -> None:
    error = command("--before", word, *URL).exception
    assert isinstance(error, ProtocolError)
    assert (exit_status(error), "before" in error.detail, pruned) == (2, True, [])


def test_a_folder_on_which_nothing_has_run_is_refused(pruned: list[str], tmp_path: Path) -> None:
    error = command("old", "--data", str(tmp_path)).exception
    assert isinstance(error, BadParameter)
    assert (error.field, pruned) == ("data", [])
