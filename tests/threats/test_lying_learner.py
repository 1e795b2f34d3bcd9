"""Tests of a learner that tells the shuffler a lower minimum than its clients, over real services.

The noise of a cohort is shared out among the survivors that clients were promised. A batch of fewer survivors has less
noise. So clients compare their cohort with the one that the shuffler serves, and send nothing if they differ. Few
clients with sealed records send at once: the shuffler refuses an upload with the digest of another cohort.
"""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from distrust.client.fleet.fleet import FleetOptions
from distrust.common.errors import Conflict, Refused
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.run.config import RunConfig
from distrust.server.intermediary import HttpIntermediaries
from tests.support.recording import Exchange, record_run

FIRST_BATCH, LEAST = 5, 28
CLIENTS = 2**FIRST_BATCH
SMALL, LARGE = 8, 3 * CLIENTS
"""Blocks of a fleet: of one cohort's clients several are filled, or none."""
ACTIONS = {"kind": "given", "vectors": [[1.0, 0.0], [0.0, 1.0]]}
ELIMINATION = {"name": "successive-elimination", "first_batch": FIRST_BATCH}
RUNS = {
    "sealed": ({"name": "shuffled-laplace", "delta": 1e-3}, ELIMINATION),
    "bits": ({"name": "shuffled-binomial", "delta": 1e-3}, ELIMINATION),
    "dealt": (
        {"name": "shuffled-laplace", "delta": 1e-3, "precision": 1000},
        {"name": "almost-free", "model": "shuffled", "actions": ACTIONS},
    ),
}


def config(kind: str) -> RunConfig:
    mechanism, policy = RUNS[kind]
    return RunConfig.model_validate(
        {
            "run": "run",
            "arms": 2,
            "horizon": 2 * CLIENTS,
            "policy": policy,
            "mechanism": {"epsilon": 1.0, **mechanism},
            "intermediary": {"dropout": 0.1, "corrupt": 0.1, "minimum": LEAST},
        }
    )


def uploads(exchanges: list[Exchange]) -> list[str]:
    """Return the endpoints of the shuffler to which fleets sent anything that depends on a reward."""
    sent = [one.url.path.rpartition("/")[2] for one in exchanges if (one.callee, one.method) == ("shuffler", "POST")]
    # Requests for plays bear tickets only. Departures bear tickets and keys: a fleet that refuses gives tickets back.
    return [path for path in sent if path not in {"actions", "departures"}]


def lie_about_the_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = HttpIntermediaries.open

    async def lie(self: HttpIntermediaries, cohort: Cohort) -> None:
        assert cohort.minimum >= LEAST
        await honest(self, cohort.model_copy(update={"minimum": 1}))

    monkeypatch.setattr(HttpIntermediaries, "open", lie)


FOUND_OUT = r"the shuffler was told cohort\.minimum = 1, and its clients"


@pytest.mark.parametrize(
    ("kind", "block"), [("sealed", SMALL), ("bits", SMALL), ("bits", LARGE), ("dealt", SMALL), ("dealt", LARGE)]
)
def test_a_minimum_that_only_the_shuffler_hears_of_is_found_out_before_anything_is_sent(
    kind: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie_about_the_minimum(monkeypatch)
    exchanges, options = list[Exchange](), FleetOptions(block=block)
    with pytest.raises(Refused, match=FOUND_OUT):
        record_run(tmp_path, [config(kind)], 0.1, monkeypatch, exchanges=exchanges, options=options)
    assert uploads(exchanges) == []
    assert any(exchange.url.path.endswith("/tickets") for exchange in exchanges)  # clients took tickets


def test_a_shuffler_that_heard_of_another_minimum_refuses_sealed_reports_and_keeps_and_forwards_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie_about_the_minimum(monkeypatch)
    exchanges, options = list[Exchange](), FleetOptions(block=LARGE)
    with pytest.raises(Refused, match=FOUND_OUT):
        record_run(tmp_path, [config("sealed")], 0.1, monkeypatch, exchanges=exchanges, options=options)
    answers = [json.loads(exchange.answer) for exchange in exchanges if exchange.url.path.endswith("/reports")]
    assert len(answers) == len(uploads(exchanges)) > 0
    assert {(answer["type"], answer["status"]) for answer in answers} == {(Conflict("").urn, 409)}
    with closing(sqlite3.connect(tmp_path / "shuffler.sqlite3")) as shuffler:
        assert shuffler.execute("SELECT DISTINCT stage FROM messages").fetchall() == [("departed",)]
    with closing(sqlite3.connect(tmp_path / "server.sqlite3")) as server:
        assert server.execute("SELECT body FROM batches").fetchall() == []
    batches = [json.loads(one.answer) for one in exchanges if one.url.path.endswith("/batch")]
    assert [batch for batch in batches if batch.get("batch") is not None] == []


@pytest.mark.parametrize("kind", RUNS)
def test_without_the_lie_they_look_once_a_cohort_and_send(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchanges: list[Exchange] = []
    record_run(tmp_path, [config(kind)], 0.1, monkeypatch, exchanges=exchanges)
    looks = [(exchange.caller, exchange.url.path) for exchange in exchanges if exchange.url.path.endswith("/terms")]
    assert "reports" in uploads(exchanges)
    assert len(looks) == len(set(looks))
    assert looks
