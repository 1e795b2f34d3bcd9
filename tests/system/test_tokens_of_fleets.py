"""Tests what `distrust fleet` says of a token that gets no tickets, and that the run goes on with others."""

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from distrust.client.__main__ import main
from distrust.common.protocol.messages.admission import Participant, new_token
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.listing import RunView
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.participants import Participants
from distrust.lab.stack.stack import Stack
from tests.support.forked import forking

COHORT = 32
CONFIG = RunConfig.model_validate(
    {
        "run": "tokens",
        "arms": 2,
        "horizon": 2 * COHORT,
        "policy": {"first_batch": 5},
        "mechanism": {"name": "local-laplace-discrete", "epsilon": 2.0, "via": "shuffler"},
    }
)
WORLD = '{"name":"bernoulli","means":[0.2,0.8],"seed":4}'


def made(folder: DataDir, name: str, quota: int | None = None, expires: datetime | None = None) -> Path:
    """Make a participation token, and return its file."""
    file = folder.path / f"{name}.token"
    limits = Participant(name=name, kind="token", id="0" * 64, quota=quota, expires=expires)
    Participants(folder).new_token(limits, file)
    return file


def test_each_token_that_gets_no_tickets_is_one_line_and_exit_code_2_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit codes are those of operations.md. The exhausted token's clients have filled a cohort before."""
    monkeypatch.setattr("distrust.client.__main__.configure", lambda _level: None)  # the logs here are pytest's
    folder, foreign = DataDir(tmp_path / "data"), tmp_path / "foreign.token"
    foreign.write_text(new_token())
    with forking(), Stack(folder, 0) as stack:
        cases = {
            "unauthorized": None,
            "foreign-token": foreign,
            "expired-token": made(folder, "late", expires=datetime.now(UTC) - timedelta(seconds=1)),
            "revoked-token": made(folder, "gone"),
            "exhausted-token": made(folder, "small", quota=COHORT),
        }
        Participants(folder).revoke("gone")
        with httpx.Client(base_url=f"{stack.urls.server}/v1", trust_env=False) as operator:
            operator.headers["Authorization"] = f"Bearer {stack.urls.token}"
            assert operator.post("/runs", json=json.loads(CONFIG.canonical())).status_code == 201

            def fleet(token: Path | None) -> int:
                words = ["--run", "tokens", "--environment", WORLD, "--memory-file", str(tmp_path / "memory")]
                for party in ("server", "shuffler", "aggregator"):
                    words += [f"--{party}", getattr(stack.urls, party)]
                words += [] if token is None else ["--participation-token-file", str(token)]
                monkeypatch.setattr(sys, "argv", ["client", *words])
                return main()

            def stands() -> RunView:
                return RunView.model_validate_json(operator.get("/runs/tokens").content)

            for code, token in cases.items():
                assert (code, fleet(token)) == (code, 2)
                (line,) = capsys.readouterr().err.splitlines()
                assert line.startswith(f"{code} ")
                assert (stands().state, stands().cohorts_aborted) == ("running", 0)
            assert fleet(folder.fleet_file) == 0
            end = stands()
    assert (end.state, end.cohorts_released, end.cohorts_aborted, end.clients) == ("finished", 2, 0, 2 * COHORT)
