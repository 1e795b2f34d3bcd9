"""Services with finished runs and an aborted cohort, for tests of the pages of cohorts."""

import base64
import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx

from distrust.common.protocol.messages.cohort import cohort_address
from distrust.common.protocol.messages.status import CohortList
from distrust.common.protocol.messages.upload import Leaving
from distrust.common.protocol.run.round import TicketAnswer
from distrust.lab.play.run_file import RunFile, parse
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import Stack
from tests.support.forked import forking
from tests.support.http_runs import in_background, over_http

SMALL = """
run = "{name}"
horizon = 32
[policy]
first_batch = 4
[mechanism]
{mechanism}
[intermediary]
dropout = 0.2
corrupt = 0.0
minimum = 2
stage_seconds = {stage_seconds}
[environment]
name = "bernoulli"
means = [0.2, 0.8]
seed = 3
[fleet]
processes = 1
"""
MASKED = 'name = "distributed-polya"\nepsilon = 1.0'
SHUFFLED = 'name = "shuffled-binomial"\nepsilon = 4.0\ndelta = 1e-2'


def small_run(name: str, mechanism: str, *, stage_seconds: float = 60.0, more: str = "") -> RunFile:
    """Return a run of two arms and two cohorts of 16 clients. more: further tables."""
    return parse(SMALL.format(name=name, mechanism=mechanism, stage_seconds=stage_seconds) + more)


@dataclass(frozen=True)
class ShownRuns:
    """Runs of a stack: `masked` and `shuffled` are finished, and `lost` has an aborted cohort.

    The noise of `shuffled` has a seed, so that the lab can tell what its clients sent.
    """

    stack: Stack
    files: dict[str, RunFile]

    def cohort(self, run: str) -> str:
        """Return the address of the page of a run's first cohort."""
        name = self.report(run)["cohorts"][0]["cohort"]
        return f"{self.stack.urls.server}/runs/{run}/cohorts/{name}"

    def report(self, run: str) -> dict[str, Any]:
        """Return a run's first round, as the API has it."""
        answer: dict[str, Any] = httpx.get(f"{self.stack.urls.server}/v1/runs/{run}/rounds/1", trust_env=False).json()
        return answer


@contextmanager
def held_stack(folder: Path) -> Iterator[Stack]:
    """Run a stack whose cohorts stay open for ten minutes while their tickets are held."""
    with patch.dict(os.environ, DISTRUST_FIRST_SECONDS="600"), forking(), Stack(DataDir(folder), 0) as stack:
        yield stack


def play(stack: Stack) -> ShownRuns:
    """Play the runs. The last one's clients take tickets and never answer."""
    lost = small_run("lost", MASKED, stage_seconds=0.2)
    shuffled = small_run("shuffled", SHUFFLED, more="[unsafe]\nnoise_seed = 5\n")
    files = {"masked": small_run("masked", MASKED), "shuffled": shuffled}
    for file in files.values():
        in_background(partial(over_http, stack, file)).result()  # a browser's own event loop may run in this thread
    join(stack, lost)
    with httpx.Client(base_url=stack.urls.server, trust_env=False) as client:
        end = time.monotonic() + 300
        while client.get("/v1/runs/lost").json()["cohorts_aborted"] == 0:
            assert time.monotonic() < end
            time.sleep(0.1)
    return ShownRuns(stack, files)


def join(stack: Stack, file: RunFile, clients: int = 16) -> str:
    """Start a run, take tickets of its first cohort, and send nothing more. Return the cohort's name."""
    return join_with_tickets(stack, file, clients).cohort


def join_with_tickets(stack: Stack, file: RunFile, clients: int = 16) -> Leaving:
    """Do as `join`. Return the message by which all these clients leave the cohort."""
    with httpx.Client(base_url=stack.urls.server, trust_env=False) as client:
        operator = {"Authorization": f"Bearer {stack.urls.token}"}
        body = file.config.model_dump(mode="json")
        assert client.post("/v1/runs", json=body, headers=operator).status_code == 201
        keys = b"".join(hashlib.sha256(secrets.token_bytes(8)).digest() for _ in range(clients))
        wanted = {"request": secrets.token_hex(16), "round": 1, "want": clients, "keys": _text(keys)}
        answer = client.post(f"/v1/runs/{file.config.run}/tickets", json=wanted, headers=operator)
        assert answer.status_code == 200
        (grant,) = TicketAnswer.model_validate_json(answer.content).grants
    slots = list(range(grant.first, grant.first + grant.count))
    return Leaving(cohort=grant.cohort, slots=slots, tickets=grant.signatures, keys=keys)


def leave(stack: Stack, leaving: Leaving) -> None:
    """Tell the aggregator that these clients leave their cohort."""
    operator, named = {"Authorization": f"Bearer {stack.urls.token}"}, {"cohort": leaving.cohort}
    listed = httpx.get(f"{stack.urls.aggregator}/v1/cohorts", params=named, headers=operator, trust_env=False)
    (entry,) = CohortList.model_validate_json(listed.content).cohorts
    url = f"{stack.urls.aggregator}/v1/cohorts/{cohort_address(entry.run_digest, entry.cohort)}/departures"
    answer = httpx.post(url, json=leaving.model_dump(mode="json"), trust_env=False)
    assert (answer.status_code, answer.json()["accepted"]) == (200, len(leaving.slots))


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
