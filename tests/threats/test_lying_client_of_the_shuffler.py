"""Tests of one client that sends the shuffler what is no record: it costs itself its place, and no other client."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distrust.client.transport.http import HttpTransport
from distrust.common.protocol.channels.sealed import REPORT_ID, SealedRecords, sealed_size
from distrust.common.protocol.crypto.seal import seal
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.upload import Upload
from distrust.common.protocol.run.config import RunConfig
from distrust.server.learner.rounds import ReleasedCohort
from tests.support.recording import RecordedRun, record_run

LIAR, PRECISION = 4, 20
OTHER_ID = bytes(range(REPORT_ID))


def _sealed(cohort: Cohort, report: bytes, payload: bytes) -> bytes:
    """Return a report with a record of the client's own, in place of the one that it has made."""
    assert isinstance(cohort.channel, SealedRecords)
    own = seal(cohort.channel.server_key, cohort, report[:REPORT_ID], payload)
    return report[:REPORT_ID] + own + report[REPORT_ID + len(own) :]


def other_id(_cohort: Cohort, report: bytes) -> bytes:
    """The id before the record is not the one inside it."""
    return OTHER_ID + report[REPORT_ID:]


def no_record(cohort: Cohort, report: bytes) -> bytes:
    assert isinstance(cohort.channel, SealedRecords)
    size = sealed_size(cohort.channel.size)
    return report[:REPORT_ID] + bytes(size) + report[REPORT_ID + size :]


def no_vector(cohort: Cohort, report: bytes) -> bytes:
    """The record holds a number above every modulus of its length. Of assigned actions it opens at none of them."""
    assert isinstance(cohort.channel, SealedRecords)
    return _sealed(cohort, report, b"\xff" * cohort.channel.size)


RATES = {"dropout": 0.1, "corrupt": 0.1}
CROWD = {"name": "shuffled-laplace", "epsilon": 4.0, "delta": 1e-2, "precision": PRECISION}
LOCAL = {"name": "local-laplace-discrete", "epsilon": 2.0, "via": "shuffler", "precision": PRECISION}
ACTIONS = {"kind": "given", "vectors": [[1.0, 0.0], [0.0, 1.0]]}
RUNS: dict[str, tuple[int, dict[str, Any]]] = {
    "crowd": (32, {"mechanism": CROWD}),
    "local": (32, {"mechanism": LOCAL}),
    "assigned": (
        48,
        {
            "mechanism": CROWD,
            "horizon": 48,
            "policy": {"name": "almost-free", "model": "shuffled", "actions": ACTIONS},
            "intermediary": {"dropout": 0.3, "minimum": 24, "corrupt": 0.1},
        },
    ),
}
"""By kind: the clients of its cohorts, and what is a run's own."""


def played(
    tmp_path: Path, tap: pytest.MonkeyPatch, kind: str, lie: Callable[[Cohort, bytes], bytes]
) -> tuple[RecordedRun, ReleasedCohort]:
    """Play a run in whose cohorts one client lies, and return its first outcome."""
    upload = HttpTransport.upload

    async def lying(self: HttpTransport, cohort: Cohort, body: Upload) -> Any:
        items = [
            item.model_copy(update={"body": lie(cohort, item.body)}) if item.slot == LIAR else item
            for item in body.items
        ]
        return await upload(self, cohort, body.model_copy(update={"items": items}))

    tap.setattr(HttpTransport, "upload", lying)
    clients, own = RUNS[kind]
    whole = {"run": kind, "arms": 2, "horizon": 2 * clients, "policy": {"first_batch": 5}, "intermediary": RATES}
    run = record_run(tmp_path, [RunConfig.model_validate(whole | own)], 0.0, tap)
    ends = run.outcomes()
    assert {end.kind for end in ends} == {"released"}
    first = ends[0]
    assert isinstance(first, ReleasedCohort)
    return run, first


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("lie", [no_record, no_vector])
def test_a_record_that_cannot_be_read_is_no_survivor_and_the_others_are_released(
    kind: str, lie: Callable[[Cohort, bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The released estimate is that of the others' messages, to the last one."""
    run, first = played(tmp_path, monkeypatch, kind, lie)
    assert first.survivors == RUNS[kind][0] - 1
    assert run.rows("server", "SELECT DISTINCT lost FROM cohorts") == [(1,)]
    events = [json.loads(text) for (text,) in run.rows("server", "SELECT body FROM events")]
    ends = {event["detail"] for event in events if event["kind"] == "cohort-released"}
    assert ends == {"records that do not open, or hold no vector, and count as lost: 1"}
    rows, modulus = run.truth.rows[first.cohort], run.truth.moduli[first.cohort]
    others = sum(int(row[0]) for slot, row in rows.items() if slot != LIAR)
    low = -1.0 if kind == "assigned" else 0.0  # rewards of actions lie in [-1, 1]
    steps = round((sum(first.sum) - low * first.survivors) * PRECISION / (1.0 - low))
    assert steps % modulus == others % modulus


@pytest.mark.parametrize("kind", RUNS)
def test_a_report_id_that_is_not_the_one_in_the_record_costs_no_client(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, first = played(tmp_path, monkeypatch, kind, other_id)
    assert first.survivors == RUNS[kind][0]
