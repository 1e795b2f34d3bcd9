"""Tests that a run ends with the right sums if its services are killed in the middle of it, one after the other."""

from pathlib import Path

import httpx
import pytest

from distrust.lab.play import in_process
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import NAMES, Stack
from tests.support.forked import forking
from tests.support.http_runs import in_background, learned, over_http, run_file, until

pytestmark = pytest.mark.slow

CASES = [
    pytest.param(("server", "aggregator"), "distributed-polya-aggregator", id="of-masked-sums"),
    pytest.param(("shuffler", "server"), "identity-shuffler", id="of-sealed-records"),
]
"""The services that are killed as the first tickets are out, and as a hundred are, and the mechanism."""


def tickets_out(stack: Stack, run: str) -> int:
    """Return the number of tickets handed out; 0 before the run exists."""
    headers = {"Authorization": f"Bearer {stack.urls.token}"}
    answer = httpx.get(f"{stack.urls.server}/v1/runs/{run}", headers=headers, trust_env=False)
    return int(answer.json()["clients"]) if answer.is_success else 0


@pytest.mark.parametrize(("victims", "mechanism"), CASES)
@pytest.mark.few(1)
def test_a_service_killed_in_the_middle_of_a_run_comes_back_and_nothing_is_lost_or_counted_twice(
    tmp_path: Path, victims: tuple[str, str], mechanism: str
) -> None:
    file = run_file(f"killed-{victims[0]}", mechanism, horizon=330, first_batch=5)
    with forking(), Stack(DataDir(tmp_path), 0) as stack:
        playing = in_background(lambda: over_http(stack, file))
        for clients, victim in zip((1, 100), victims, strict=True):
            until(lambda least=clients: tickets_out(stack, file.config.run) >= least)  # type: ignore[misc]
            assert not playing.done(), "the run was over before anything was broken"
            stack.restart(victim)
        result = playing.result(600)
    assert learned(result) == learned(in_process.run(file))


def test_every_service_has_a_case() -> None:
    assert {victim for case in CASES for victim in case.values[0]} == set(NAMES)
