"""Why clients refused is in the result and in the error of a run over services, also when none was served."""

import asyncio
import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distrust.client.stats import FleetStats
from distrust.common.errors import ProtocolError, RunFailed, Unavailable
from distrust.common.run.progress import RunView
from distrust.lab.run.fleet_processes import Fleets, fleet_environment
from distrust.lab.run.over_http import HttpRun
from distrust.lab.run.result import Wire, most_common
from distrust.lab.run.run_file import parse
from distrust.lab.stack.stack import Urls

RUN = """
run = "trial"
horizon = 2000
policy = {first_batch = 5}
mechanism = {name = "identity"}
environment = {name = "bernoulli", means = [0.2, 0.8], seed = 3}
"""
WHY, OTHER = "refused: ε = 1 is above this user's 0.5", "conflict: differs"


@pytest.fixture
def fleets(tmp_path: Path) -> Iterator[Fleets]:
    """Fleets whose processes were never started."""
    idle = Fleets(parse(RUN), Urls("http://a", "http://b", "http://c"), tmp_path)
    idle._folder = tempfile.TemporaryDirectory()
    yield idle
    idle._end()


def report(fleets: Fleets, name: str, refusals: dict[str, int], **clients: int) -> None:
    stats = FleetStats()
    stats.clients.update(clients)
    stats.message_bytes["report"] = 10 * clients.get("served", 0)
    for why, count in refusals.items():
        stats.refuse(count, why)
    written = stats.report(sent_bytes=60, received_bytes=40)
    (Path(fleets._folder.name) / f"{name}.json").write_text(json.dumps(written), "utf-8")


def test_the_reasons_of_a_run_in_which_all_clients_refused_are_kept(fleets: Fleets) -> None:
    assert fleets.wire() is None
    report(fleets, "fleet-1", {WHY: 20}, joined=20)
    report(fleets, "fleet-2", {WHY: 5, OTHER: 1})
    assert fleets.wire() == Wire(payload_bits=None, bytes=10.0, refusals={WHY: 25, OTHER: 1})


def test_payload_is_counted_for_the_clients_that_were_served(fleets: Fleets) -> None:
    report(fleets, "fleet-1", {OTHER: 2}, joined=10, served=8)
    assert fleets.wire() == Wire(payload_bits=80.0, bytes=10.0, refusals={OTHER: 2})


@pytest.mark.parametrize("error", [RunFailed("run trial was cancelled: enough"), Unavailable("every fleet has ended")])
def test_the_error_of_a_run_names_the_reasons_for_which_clients_refused(
    fleets: Fleets, monkeypatch: pytest.MonkeyPatch, error: ProtocolError
) -> None:
    async def watch(_self: HttpRun) -> RunView:
        raise error

    monkeypatch.setattr(HttpRun, "_watch", watch)
    report(fleets, "fleet-1", {WHY: 1200, OTHER: 1}, joined=1201)
    silent: Any = None
    play = HttpRun(parse(RUN), Urls("http://a", "http://b", "http://c"), fleets, silent)
    with pytest.raises(type(error)) as raised:
        asyncio.run(play._watched())
    own = "ε = 1 is above this user's 0.5"  # and not `refused` twice
    assert raised.value.detail == f"{error.detail}; 1,200 clients refused: {own}; 1 clients refused: {OTHER}"


def test_fleets_are_told_the_digest_of_the_run_that_was_created() -> None:
    file = parse(RUN)
    environment = fleet_environment(file, Urls("http://a", "http://b", "http://c"))
    assert environment["DISTRUST_CONFIG_DIGEST"] == hashlib.sha256(file.config.canonical()).hexdigest()


def test_three_reasons_are_told_at_most() -> None:
    assert most_common({"a": 1, "b": 4, "c": 2, "d": 3}) == [("b", 4), ("d", 3), ("c", 2)]
