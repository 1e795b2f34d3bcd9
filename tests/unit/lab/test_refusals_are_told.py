"""Tests that a run over services names clients' refusals in its result and error, also if none was served."""

import asyncio
import hashlib
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table

from distrust.client.cohort.stats import FleetStats
from distrust.common.errors import BadParameter, ProtocolError, Refused, RunFailed, Unavailable
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.listing import RunView
from distrust.common.protocol.web.client import from_document
from distrust.lab.cli.console import exit_code_of, out
from distrust.lab.cli.run import on_own_stack
from distrust.lab.play import in_process
from distrust.lab.play.result import Wire, most_common
from distrust.lab.play.run_file import BadRunFile, parse, read
from distrust.lab.services.connection import check_clients
from distrust.lab.services.fleet_processes import Fleets, fleet_environment
from distrust.lab.services.over_http import HttpRun
from distrust.lab.stack.data_dir import DataDir, write_result
from distrust.lab.stack.process import ServiceProcess
from distrust.lab.stack.stack import Urls

PAGE = (Path(__file__).parents[3] / "docs/concepts/contextual.md").read_text("utf-8")
BLOCK = PAGE.partition("```toml\n")[2].partition("```")[0]
BUDGET = "[budget]\nepsilon = 1.0\ndelta = 0.1\n"
ROWS = re.findall(r"^\| ([^|]+) \|[^|]+\| `(\{name = \"linucb.*\})` \| `(\{.*\})` \|$", PAGE, re.MULTILINE)
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
    """Yield fleets whose processes were never started."""
    idle = Fleets(parse(RUN), Urls("http://a", "http://b", "http://c"), tmp_path, tmp_path / "clients.sqlite3")
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


def of_the_page(name: str) -> str:
    """Return the run file of contextual.md, with the policy and the mechanism of the table's row `name`."""
    table = "".join(part for part in re.split(r"(?=^\[)", BLOCK, flags=re.MULTILINE) if part[1:3] not in {"po", "me"})
    policy, mechanism = {row: words for row, *words in ROWS}[name]
    whole = table.replace("[environment]", f"policy = {policy}\nmechanism = {mechanism}\n[environment]")
    return whole if "epsilon" in mechanism else whole.replace(BUDGET, "")


@pytest.mark.parametrize("name", [row[0] for row in ROWS])
def test_clients_take_part_in_every_run_that_the_page_on_contextual_bandits_names(name: str) -> None:
    assert (len(ROWS), BUDGET in BLOCK) == (10, True)
    check_clients(parse(of_the_page(name)))


@pytest.mark.parametrize(
    ("name", "epsilon", "says"),
    [
        ("LinUCB-SDP-Amp", 1.0, r"mechanism\.delta = 0\.1: .* δ = 0\.1 is above this user's 1e-05; \[budget\] of the"),
        ("LinUCB-LDP", 20.0, r"mechanism\.epsilon = 20\.0: .* ε = \d+\.\d+ is above this user's 10; \[budget\] of the"),
    ],
)
def test_a_run_that_its_clients_would_refuse_ends_before_a_service_starts_as_bad_input(
    name: str, epsilon: float, says: str, *, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_words: object) -> None:
        raise AssertionError("a service was started")

    monkeypatch.setattr(ServiceProcess, "__init__", start)
    monkeypatch.setattr("distrust.lab.cli.console.signal.signal", lambda *_: None)
    file = parse(of_the_page(name).replace(BUDGET, "").replace("epsilon = 1.0", f"epsilon = {epsilon}"))
    with pytest.raises(BadParameter, match=says):
        on_own_stack(file, DataDir(tmp_path), 0)
    assert exit_code_of(lambda: on_own_stack(file, DataDir(tmp_path), 0)) == 2


def test_limits_that_the_fleets_find_in_their_variables_are_those_that_are_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = parse(of_the_page("LinUCB-SDP-Amp").replace(BUDGET, ""))
    monkeypatch.setenv("DISTRUST_MAX_DELTA", "0.2")
    check_clients(file)
    for variable, value, why in (
        ("DISTRUST_MAX_SURVIVORS", "100", "this user believes in 100 at most"),
        ("DISTRUST_MIN_SURVIVORS", "999999", "counts on .* and this user on 999999"),
        ("DISTRUST_MAX_EPSILON_ALONE", "0.001", "if all other clients collude, ε = .* accepts 0.001 at most"),
        ("DISTRUST_CONTRIBUTIONS", "700", "700 contributions would cost"),
    ):
        monkeypatch.setenv(variable, value)
        with pytest.raises(BadParameter, match=rf"^{variable} = {value}: .*{why}"):
            check_clients(file)
        monkeypatch.delenv(variable)


SMALL = """
run = "trial"
horizon = 200
mechanism = {name = "distributed-polya", epsilon = 1.0}
environment = {name = "gaussian-easy", seed = 5}
"""


def test_a_run_of_small_cohorts_needs_min_survivors_of_its_budget_which_its_fleets_get() -> None:
    with pytest.raises(
        BadParameter, match=r"^budget\.min_survivors is missing: .* counts on 2 .*, and this user on 50;"
    ):
        check_clients(parse(SMALL))
    budget = "budget = {{epsilon = 1.0, min_survivors = {}}}\n"
    allowed = parse(SMALL + budget.format(2))
    check_clients(allowed)
    places = Urls("http://a", "http://b", "http://c")
    assert fleet_environment(allowed, places)["DISTRUST_MIN_SURVIVORS"] == "2"
    assert "DISTRUST_MIN_SURVIVORS" not in fleet_environment(parse(SMALL + "budget = {epsilon = 1.0}"), places)
    with pytest.raises(BadParameter, match=r"^budget\.min_survivors = 3: .* counts on 2 survivors, and this user on 3"):
        check_clients(parse(SMALL + budget.format(3)))
    for bad, why in (("0", "at least 1"), ("2.5", "a whole number"), ('"2"', "a whole number")):
        with pytest.raises(BadRunFile, match=rf"budget\.min_survivors = .*: must be {why}"):
            parse(SMALL + budget.format(bad))


def test_min_survivors_is_no_limit_of_a_run_in_process() -> None:
    assert in_process.run(parse(SMALL)).rounds


def test_a_configuration_without_min_survivors_has_the_digest_that_it_had() -> None:
    """Published rows and clients' pins name it."""
    without = parse(SMALL + "budget = {epsilon = 1.0, delta = 1e-6}").config
    assert b'"budget":{"delta":1e-06,"epsilon":1.0},' in without.canonical()
    given = parse(SMALL + "budget = {epsilon = 1.0, delta = 1e-6, min_survivors = 2}").config
    assert given.digest() != without.digest()
    assert RunConfig.model_validate_json(given.canonical()) == given


class Ended:
    """A fleet's process that has ended with status 2."""

    returncode = 2

    def poll(self) -> int:
        return self.returncode


@pytest.mark.parametrize("code", ["refused", "budget-exceeded"])
def test_a_fleet_that_refuses_later_ends_the_command_as_bad_input_and_not_as_unavailable(
    fleets: Fleets, tmp_path: Path, code: str
) -> None:
    fleet: Any = ServiceProcess.__new__(ServiceProcess)
    fleet.name, fleet.log, fleet._begin, fleet.process = "fleet 1", tmp_path / "log", 0, Ended()
    fleets._fleets = [fleet]
    fleet.log.write_text(f'{{"event": "fleet_ended"}}\n{code} δ = 0.1 is above\n', "utf-8")
    with pytest.raises(Refused) as raised:
        fleets.check()
    assert raised.value.detail == "the clients of run trial refuse to go on: δ = 0.1 is above"
    fleet.log.write_text("unavailable refused: connection\n", "utf-8")
    with pytest.raises(Unavailable, match="the fleet 1 ended with status 2"):
        fleets.check()
    fleets._fleets = []


STEERING = "\x1b]0;owned\x9b2J\u202e"


def test_what_another_party_says_never_steers_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A lying server's reason is bounded, too; and JSON on a terminal has escapes, which mean the same."""
    fields = {"type": "urn:distrust:problem:run-failed", "title": "", "status": 409, "detail": STEERING * 10**6}
    lie = from_document(json.dumps({**fields, "code": f"[link=x]{STEERING}", "cohort": "c1"}).encode(), 409)
    assert (type(lie), lie.code, lie.extra, len(lie.detail)) == (RunFailed, "run-failed", {"cohort": "c1"}, 2000)
    run_file = tmp_path / "bad.toml"
    run_file.write_text('"\\u001b]0;owned\\u009b2J\\u202e" = 1\n', "utf-8")

    def failing() -> None:
        out.print(Table(STEERING))
        write_result(json.dumps({"reason": STEERING}, ensure_ascii=False), "-")
        raise RunFailed(STEERING)

    exit_code_of(failing)
    exit_code_of(lambda: read(run_file))
    shown = capsys.readouterr()
    assert set(shown.out + shown.err) & set("\x1b\x9b\u202e") == set()
    assert shown.out.endswith(r'{"reason": "\u001b]0;owned\u009b2J\u202e"}')
    assert f"\ufffd]0;owned\ufffd2J\ufffd\n{BadRunFile.code} {run_file}: " in shown.err
    assert BatchAnswer(cohort="c1", state="aborted", reason=STEERING * 10**6).reason == lie.detail


def test_a_configuration_that_keeps_messages_for_a_day_has_the_digest_that_it_had() -> None:
    def digest(**keep: float) -> bytes:
        table = {"run": "r", "arms": 2, "horizon": 100, "mechanism": {"name": "identity"}, "intermediary": keep}
        return RunConfig.model_validate(table).digest()

    assert digest() == digest(keep_seconds=86_400.0)
    assert len({digest(), digest(keep_seconds=0.0), digest(keep_seconds=1.0)}) == 3
