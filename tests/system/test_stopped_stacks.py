"""Tests that `inspect` of a stopped stack says, of cohorts of every kind, what the services said while they ran."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import distrust
from distrust.common.protocol.channels.sealed import NO_KEY
from distrust.lab.__main__ import app
from distrust.lab.services.connection import Connection
from distrust.lab.services.outline import Wanted
from distrust.lab.services.transcripts import Inspection, described
from tests.support.forked import forking

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_cohorts")]

ARMS = {"name": "bernoulli", "seed": 4, "means": [0.1, 0.9]}
SPHERE = {"name": "linear-sphere", "seed": 4, "arms": 4}
ASSIGNED = {"name": "almost-free", "model": "shuffled"}

RUNS: dict[str, dict[str, Any]] = {
    "masked": {"mechanism": {"name": "distributed-polya", "epsilon": 1.0}},
    "sealed": {"mechanism": {"name": "local-laplace-discrete", "via": "shuffler", "epsilon": 2.0}},
    "bits": {"mechanism": {"name": "shuffled-binomial", "epsilon": 4.0, "delta": 1e-2}},
    "dealt": {"mechanism": {"name": "identity", "via": "shuffler"}, "policy": ASSIGNED, "environment": SPHERE},
}
"""A run by the kind of its cohorts' channel. Its clients leave at every stage."""

OF_CLIENTS = {"masked": "masked", "sealed": "report", "bits": "report", "dealt": "report"}
IN_A_BATCH = {"masked": "sum", "sealed": "records", "bits": "ones", "dealt": "by_action"}
"""By kind: the stage in which clients send what their rewards are in, and what the server reads in the batch."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def told(folder: Path) -> dict[str, list[Any]]:
    """Return what running services answer about the first and the last round of every run, and stop them."""
    with forking(), distrust.services(folder) as services:
        return {kind: _played(kind, services) for kind in RUNS}


def _played(kind: str, services: Connection) -> list[Any]:
    table = {"run": kind, "horizon": 64, "policy": {"first_batch": 3}, "environment": ARMS, **RUNS[kind]}
    fleet = {"processes": 1, "dropout": 0.1}
    result = services.run({**table, "fleet": fleet, "intermediary": {"dropout": 0.3, "minimum": 2}})
    numbers = sorted({1, len(result.rounds)})
    return [(number, _described(kind, number, services.inspect(kind, round_number=number))) for number in numbers]


def _described(kind: str, number: int, inspection: Inspection) -> dict[str, Any]:
    return described(Wanted(kind, number, None, 3), inspection.party_views)


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.few(2)
def test_a_stopped_stack_says_what_its_services_said(kind: str, told: dict[str, list[Any]], folder: Path) -> None:
    assert told[kind]
    for number, live in told[kind]:
        done = CliRunner().invoke(app, ["inspect", kind, "--round", str(number), "--data", str(folder), "--json", "-"])
        assert json.loads(done.stdout) == json.loads(json.dumps(live))
    first = told[kind][0][1]["cohorts"][0]
    assert (first["channel"], first["missing"]) == (kind, {})
    assert {entry["stage"] for entry in first["intermediary"]["messages"]} >= {OF_CLIENTS[kind], "batch"}
    (batch,) = [entry for entry in first["server"]["messages"] if entry["stage"] == "batch"]
    assert batch["view"][IN_A_BATCH[kind]]
    sealed = kind in {"sealed", "dealt"}
    assert batch["view"].get("refused") == (NO_KEY if sealed else None)  # the run is over
