"""Tests that `--json` of `up`, `demo` and `data` is one object of facts, which agree with what they made."""

import json
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from typer.testing import CliRunner

from distrust.client.environments.contextual_mslr import read_contexts
from distrust.client.environments.letor import FEATURES
from distrust.client.environments.mslr import read_counts
from distrust.lab.__main__ import app
from distrust.lab.cli.console import INTERRUPTED
from distrust.lab.play import in_process
from distrust.lab.play.result import Result
from distrust.lab.play.run_file import RunFile, parse
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import Urls

SMALL = """
run = "trial"
horizon = 64
policy = {first_batch = 3}
mechanism = {name = "distributed-polya", epsilon = 1.0}
environment = {name = "bernoulli", means = [0.1, 0.9], seed = 3}
"""


def facts(*words: str | Path, code: int = 0) -> Any:
    """Return the object on stdout, of which nothing else may be there; `json.loads` refuses a second one."""
    done = CliRunner().invoke(app, [*map(str, words), "--json", "-"])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def letor(path: Path, rows: int, seed: int) -> Path:
    """Write rows of two groups far apart, with labels 0 to 4."""
    dice = np.random.default_rng(seed)
    lines = []
    for number in range(rows):
        values = dice.normal(10 * (number % 2), 0.1, FEATURES)
        words = " ".join(f"{column + 1}:{value:.6g}" for column, value in enumerate(values))
        lines.append(f"{number % 5} qid:{number // 4} {words}\n")
    path.write_text("".join(lines), "utf-8")
    return path


class Interrupted:
    """A stack that is ready, and is stopped by Ctrl-C."""

    urls = Urls("http://s:1", "http://f:2", "http://a:3", "the operator's secret", "the inspector's secret")

    def __init__(self, data_dir: DataDir, port_base: int) -> None:
        self.data_dir, self.port_base = data_dir, port_base

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def check(self) -> None:
        raise KeyboardInterrupt


def test_up_tells_its_addresses_and_where_the_tokens_are_and_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distrust.lab.cli.stack.Stack", Interrupted)
    told = facts("up", "--data", tmp_path, code=INTERRUPTED)
    folder = DataDir(tmp_path)
    assert told == {
        "server": "http://s:1",
        "shuffler": "http://f:2",
        "aggregator": "http://a:3",
        "operator_token_file": str(folder.token_file),
        "inspector_token_file": str(folder.inspector_file),
        "participation_token_file": str(folder.fleet_file),
        "logs": str(tmp_path / "logs"),
    }
    beside = CliRunner().invoke(app, ["up", "--data", str(tmp_path), "--json", str(tmp_path / "up.json")])
    assert json.loads((tmp_path / "up.json").read_text("utf-8")) == told
    assert all(url in beside.stdout for url in ("http://s:1/", "http://f:2/", "http://a:3/"))
    assert "secret" not in beside.stdout


def test_demo_prints_its_result_and_nothing_beside_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    played: list[Result] = []

    def small(_file: RunFile, *_: object, **__: object) -> Result:
        played.append(in_process.run(parse(SMALL)))
        return played[0]

    monkeypatch.setattr("distrust.lab.cli.run.on_own_stack", small)
    assert facts("demo", "--data", tmp_path) == played[0].model_dump(mode="json")


def test_data_mslr_tells_the_arms_and_rows_of_its_table(tmp_path: Path) -> None:
    table = tmp_path / "arms.csv"
    words = ("data", "mslr", letor(tmp_path / "a.txt", 30, 1), letor(tmp_path / "b.txt", 10, 2), "--clusters", "2")
    assert facts(*words, "--out", table) == {"file": str(table), "arms": 2, "rows": 40}
    assert read_counts(table).sum(axis=0).tolist() == [8, 8, 8, 8, 8]  # as many rows of each of five labels


def test_data_mslr_contexts_tells_the_rows_and_components_of_its_table(tmp_path: Path) -> None:
    table, fit = tmp_path / "contexts.csv", letor(tmp_path / "fit.txt", 60, 3)
    words = ("data", "mslr-contexts", letor(tmp_path / "a.txt", 25, 1), "--fit", fit, "--components", "3")
    assert facts(*words, "--out", table) == {"file": str(table), "rows": 25, "components": 3}
    made = read_contexts(table)
    assert (len(made.labels), made.components.shape) == (25, (25, 3))
