"""Tests the parts of `distrust run` that need no services."""

from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits
from typer.testing import CliRunner

from distrust.common.errors import BadParameter
from distrust.lab.__main__ import app
from distrust.lab.cli.run import there
from distrust.lab.run import in_process
from distrust.lab.run.result import Result
from distrust.lab.run.run_file import RunFile, parse
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import Urls

RUN = """
run = "trial"
horizon = 200
mechanism = {name = "distributed-polya", epsilon = 1.0}
environment = {name = "gaussian-easy"}
"""


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
    with pytest.raises(BadParameter, match=r"environment.seed = None: fleets elsewhere cannot know"):
        there(parse(RUN), nowhere, DataDir(tmp_path), fleet=False)
    assert not parse(RUN.replace('"gaussian-easy"', '"gaussian-easy", seed = 5')).drawn


def test_a_run_in_process_has_no_server_to_post_its_regret_to(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    done = CliRunner().invoke(app, ["run", str(path), "--in-process", "--post-regret"])
    assert isinstance(done.exception, BadParameter)
    assert str(done.exception) == "post-regret = True: there is no server to post it to with --in-process"
