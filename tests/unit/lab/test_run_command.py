"""Tests the parts of `distrust run` that need no services."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.linalg  # noqa: F401 - its own OpenBLAS is loaded before the threads of all are counted
from threadpoolctl import threadpool_info, threadpool_limits
from typer.testing import CliRunner

from distrust.common.errors import BadParameter
from distrust.lab.__main__ import app
from distrust.lab.cli.run import on_own_stack, there
from distrust.lab.play import in_process
from distrust.lab.play.result import Result
from distrust.lab.play.run_file import RunFile, parse
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import Urls

RUN = """
run = "trial"
horizon = 200
mechanism = {name = "distributed-polya", epsilon = 1.0}
environment = {name = "gaussian-easy"}
"""
BUDGET = "budget = {epsilon = 1.0, min_survivors = 1}\n"


def test_linear_algebra_has_one_thread_in_a_run_in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen, play = tmp_path / "run.toml", list[int](), in_process.run
    path.write_text(RUN)

    def looking(file: RunFile) -> Result:
        np.eye(2) @ np.eye(2)
        seen.extend(pool["num_threads"] for pool in threadpool_info())
        return play(file)

    monkeypatch.setattr("distrust.lab.cli.run.in_process.run", looking)
    with threadpool_limits(2):  # the suite itself has one
        assert CliRunner().invoke(app, ["run", str(path), "--in-process"]).exit_code == 0
        assert {pool["num_threads"] for pool in threadpool_info()} == {2}
    assert seen
    assert set(seen) == {1}


def test_where_others_play_the_run_file_names_their_world(tmp_path: Path) -> None:
    """Regret and failures are counted in it; a seed drawn here is used once."""
    nowhere = Urls(*["http://127.0.0.1:9"] * 3, None)
    with pytest.raises(BadParameter, match=r"environment.seed is missing: fleets elsewhere cannot know"):
        there(parse(RUN), nowhere, DataDir(tmp_path), fleet=False)
    assert not parse(RUN.replace('"gaussian-easy"', '"gaussian-easy", seed = 5')).drawn


@pytest.mark.parametrize("words", ["--post-regret", "--no-fleet", "--server=http://s", "--token-file=t"])
def test_a_run_in_process_takes_no_option_that_is_for_services(words: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    done = CliRunner().invoke(app, ["run", str(path), "--in-process", words])
    assert isinstance(done.exception, BadParameter)
    assert str(done.exception).startswith(words[2:].partition("=")[0] + " = ")
    assert "--in-process plays without any" in str(done.exception)


@pytest.mark.parametrize("running", [False, True])
def test_without_a_fleet_a_run_waits_for_clients_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, running: bool
) -> None:
    """Over services that hold the folder already, and over those that the command starts."""
    seen: list[object] = []

    class Waiting:
        def __init__(self, file: RunFile, urls: Urls, fleets: object, *_more: object, **_words: object) -> None:
            seen.append(fleets)

        async def run(self) -> None:
            return None

    @contextmanager
    def started(*_words: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(urls=Urls("http://a", "http://b", "http://c", None), check=None)

    monkeypatch.setattr("distrust.lab.cli.run.HttpRun", Waiting)
    monkeypatch.setattr("distrust.lab.cli.run.Stack", started)
    there = Urls("http://a", "http://b", "http://c", None) if running else None
    monkeypatch.setattr("distrust.lab.cli.run.running_stack", lambda _folder: there)
    file = parse(RUN.replace('"gaussian-easy"', '"gaussian-easy", seed = 5') + BUDGET)
    on_own_stack(file, DataDir(tmp_path), 0, fleet=False)
    on_own_stack(file, DataDir(tmp_path), 0)
    assert [fleets is None for fleets in seen] == [True, False]
    with pytest.raises(BadParameter, match=r"environment.seed is missing: fleets elsewhere cannot know"):
        on_own_stack(parse(RUN), DataDir(tmp_path), 0, fleet=False)
