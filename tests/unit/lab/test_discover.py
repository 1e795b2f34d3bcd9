"""Tests the command line for newcomers: lists, a first run file, a check of the machine, help, exit codes."""

import json
import os
import re
import shlex
import sqlite3
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from distrust.client.environments import ENVIRONMENTS
from distrust.client.fleet.settings import FleetSettings
from distrust.common.dp.mechanisms import MECHANISMS
from distrust.common.errors import BadParameter, RunFailed, Unavailable, WrongCohort
from distrust.common.inputs import as_typed, option
from distrust.common.protocol.run.config import RunConfig
from distrust.common.specs.policy import POLICIES
from distrust.lab.__main__ import COMMANDS, app
from distrust.lab.cli.console import exit_code_of
from distrust.lab.play import in_process
from distrust.lab.play.run_file import parse, read
from distrust.lab.services.connection import check_clients
from distrust.lab.sweep.backends import _config
from distrust.lab.sweep.cells import known_experiments
from tests.support.certificates import call_with


def printed(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.output
    return done.stdout


def test_list_has_everything_that_a_run_file_or_a_figure_names() -> None:
    result = json.loads(printed("list", "--json", "-"))
    assert list(result["policies"]) == list(POLICIES)
    assert list(result["mechanisms"]) == list(MECHANISMS)
    assert list(result["environments"]) == list(ENVIRONMENTS)
    assert list(result["figures"]) == known_experiments()
    assert [name for kind in result.values() for name, meaning in kind.items() if len(meaning) < 10] == []
    text = printed("list", "policies")
    assert all(name in text for name in POLICIES)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.few(5)
def test_init_writes_a_file_for_every_policy_that_plays(policy: str, tmp_path: Path) -> None:
    path = tmp_path / "first.toml"
    printed("init", str(path), "--policy", policy)
    assert read(path).config.horizon == 20_000
    # A tenth of its horizon, but for dp-se, whose first batch alone is larger. One world, that no draw fails the test.
    short = "horizon = 20000" if policy == "dp-se" else "horizon = 2000"
    text = re.sub(r"(?m)^seed = \d+", "seed = 1", path.read_text("utf-8"))
    check_clients(parse(text))  # who would refuse a file that `distrust run` is told to play
    result = in_process.run(parse(text.replace("horizon = 20000", short)))
    assert (result.policy, result.fault) == (policy, None)
    assert result.rounds


def test_init_draws_a_seed_of_63_bits_that_cannot_be_guessed_from_the_public_actions(tmp_path: Path) -> None:
    seeds = set()
    for number in range(8):
        path = tmp_path / f"{number}.toml"
        printed("init", str(path), "--environment", "linear-sphere")
        seeds.add(tomllib.loads(path.read_text("utf-8"))["environment"]["seed"])
        assert path.read_text("utf-8").count("guesses it knows the world") == 1
    assert len(seeds) == 8  # two of 8 draws of 63 bits are equal with probability 3e-18
    assert 2**56 < max(seeds) < 2**63  # all of them small: with probability 2**-56


def test_config_prints_the_servers_part_and_nothing_of_the_world(tmp_path: Path) -> None:
    path = tmp_path / "first.toml"
    path.write_text(
        'run = "first"\nhorizon = 900\nmechanism = {name = "identity"}\nfleet = {processes = 3, dropout = 0.125}\n'
        'environment = {name = "bernoulli", seed = 987654321, means = [0.0625, 0.9375]}\n'
    )
    text = printed("config", str(path))
    assert RunConfig.model_validate_json(text) == read(path).config
    assert json.loads(text)["arms"] == 2
    assert [word for word in ("environment", "fleet", "0.0625", "0.9375", "987654321", "0.125") if word in text] == []


def test_init_overwrites_nothing_and_names_what_it_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "first.toml"
    path.write_text("mine")
    with pytest.raises(BadParameter, match="is there already; name another file"):
        app(["init", str(path)], standalone_mode=False)
    assert path.read_text() == "mine"
    with pytest.raises(BadParameter, match=r"policy = 'ucb': must be one of successive-elimination"):
        app(["init", str(tmp_path / "other.toml"), "--policy", "ucb"], standalone_mode=False)


def test_doctor_finds_a_token_that_others_can_read(tmp_path: Path) -> None:
    printed("token", "--data", str(tmp_path))
    checks = json.loads(printed("doctor", "--data", str(tmp_path), "--json", "-"))
    assert {"Python", "numpy", "disk", "operator.token", "inspector.token"} <= {check["subject"] for check in checks}
    (tmp_path / "operator.token").chmod(0o644)
    lines = printed("doctor", "--data", str(tmp_path), code=1).splitlines()
    assert [line.split()[1] for line in lines if line.startswith("broken")] == ["operator.token"]


def test_doctor_finds_a_file_by_which_no_service_could_be_called_over_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call_with(monkeypatch, {"DISTRUST_CA": "/nowhere"})
    lines = printed("doctor", "--data", str(tmp_path), code=1).splitlines()
    (broken,) = [line for line in lines if line.startswith("broken")]
    assert broken.endswith("certificates       DISTRUST_CA = '/nowhere': No such file or directory")


DATA = ("mslr", "mslr-contexts")
LEAVES = [*((name,) for name in COMMANDS if name != "data"), *(("data", name) for name in DATA)]
NO_FACTS = {("serve",), ("config",)}  # the last prints JSON anyway
"""Commands that become a service, which logs what it does as JSON."""


def test_the_group_has_no_other_commands() -> None:
    group = get_command(app).get_command(None, "data")  # type: ignore[attr-defined]  # a group
    assert tuple(group.commands) == DATA


@pytest.mark.parametrize("path", [*LEAVES, ("data",)], ids=" ".join)
def test_every_command_has_short_help_json_and_examples_with_options_that_it_knows(path: tuple[str, ...]) -> None:
    text = printed(*path, "-h")
    assert text == printed(*path, "--help")
    assert ("--json" in text) == (path not in {*NO_FACTS, ("data",)})
    _, _, shown = text.partition("Examples:\n")
    lines = [line for line in shown.replace("\\\n", " ").splitlines() if line.strip()]
    assert lines
    for line in lines:
        words = shlex.split(line)
        start = words.index("distrust")
        assert tuple(words[start + 1 :][: len(path)]) == path
        own = text if path != ("data",) else printed("data", words[start + 2], "-h")
        assert [word for word in words[start + 2 :] if word.startswith("--") and word not in own] == [], line


MISSING = [
    "run first.toml --in-process --json none/x.json",
    "list --json none/x.json",
    "init none/first.toml",
    "init first.toml --json none/x.json",
    "token --json none/x.json",
    "fleet --json none/x.json",
    "sweep smoke --json none/x.json",
    "data mslr train.txt --out none/arms.csv",
]


@pytest.mark.parametrize("line", MISSING)
def test_a_file_in_a_missing_folder_is_bad_input_before_any_work(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadParameter, match=r"^(json|out|RUN\.toml) = 'none/\S+': the folder none is not there$"):
        app(line.split(), standalone_mode=False)
    assert list(tmp_path.iterdir()) == []


def test_token_init_and_health_print_their_facts_as_one_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tokens = json.loads(printed("token", "--data", "secret", "--json", "-"))
    assert set(tokens) == {"operator_token_file", "inspector_token_file", "participation_token_file"}
    assert all(stat.S_IMODE((tmp_path / path).stat().st_mode) == 0o600 for path in tokens.values())
    made = json.loads(printed("init", "My Run!.toml", "--policy", "linucb", "--json", "-"))
    config = read(tmp_path / "My Run!.toml").config
    assert (made["run"], made["policy"], made["mechanism"]) == ("my-run", "linucb", config.mechanism.name)
    assert (config.run, made["file"]) == (made["run"], "My Run!.toml")
    with serving(lambda service: (service.send_response(200), service.end_headers())) as url:
        assert json.loads(printed("health", url, "--json", "-")) == {"url": url, "ready": True}
        assert printed("health", url) == "ready\n"


@contextmanager
def serving(answer: Callable[[BaseHTTPRequestHandler], object]) -> Iterator[str]:
    """Yield the address of a service that answers so and says nothing."""
    handler = type("Handler", (BaseHTTPRequestHandler,), {"do_GET": answer, "log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("policy", POLICIES)
def test_init_of_a_policy_and_an_environment_writes_a_file_or_names_both_flags(policy: str, tmp_path: Path) -> None:
    written = []
    for world in ENVIRONMENTS:
        path = tmp_path / f"{world}.toml"
        line = ["init", str(path), "--policy", policy, "--environment", world]
        done = CliRunner().invoke(app, line)
        if done.exit_code == 0:
            file = read(path)
            assert (file.config.policy.name, file.environment.name) == (policy, world)
            written.append(world)
            continue
        assert isinstance(done.exception, BadParameter)
        told = as_typed(done.exception.detail, done.exception.field, line)
        assert told.startswith(f"--environment = '{world}': ")
        assert f"--policy {policy}" in told
        if ENVIRONMENTS[world].REWARDS != POLICIES[policy].REWARDS:
            like = [one for one in ENVIRONMENTS if ENVIRONMENTS[one].REWARDS == POLICIES[policy].REWARDS]
            assert f": {', '.join(like)}; this one goes with" in told
        assert not path.exists()
    like = {kind for kind in ENVIRONMENTS if ENVIRONMENTS[kind].REWARDS == POLICIES[policy].REWARDS}
    assert like - set(written) <= {"auto-lending"}  # its link, the logistic one, is not every policy's


def test_init_finds_a_policy_for_every_environment(tmp_path: Path) -> None:
    for world in ENVIRONMENTS:
        made = json.loads(printed("init", str(tmp_path / f"{world}.toml"), "--environment", world, "--json", "-"))
        assert made["environment"] == world


def test_an_option_is_named_as_it_was_typed_and_a_field_of_a_file_by_its_name() -> None:
    line, field = "mechanism.epsilon = -1.0: must lie in [0.0001, 50]", "mechanism.epsilon"
    assert as_typed(line, field, ["privacy", "--epsilon", "-1"]) == "--epsilon = -1.0: must lie in [0.0001, 50]"
    assert as_typed(line, field, ["privacy", "--epsilon=-1"]) == "--epsilon = -1.0: must lie in [0.0001, 50]"
    assert as_typed(line, field, ["run", "first.toml"]) == line
    assert as_typed("clients = 0: x", "clients", ["privacy", "--n", "0"]) == "--n = 0: x"


def test_the_help_of_fleet_shows_types_and_ranges_and_a_meaning_of_every_option() -> None:
    lines = [line.strip() for line in printed("fleet", "-h").splitlines()]
    result = {line.split()[0]: line for line in lines if line.startswith("--")}
    assert set(result) == {option(name) for name in FleetSettings.model_fields}
    assert {"--server", "--shuffler", "--aggregator", "--json"} <= set(result)  # as the other commands have them
    assert re.fullmatch(r"--server <str> +Address of the server .*", result["--server"])
    assert result["--json"].startswith("--json FILE ")
    assert result["--block"].startswith("--block <int range>")
    assert "default: 512; 1<=x<=4096]" in " ".join(lines)
    assert re.fullmatch(r"--allow-unsafe +Take part in rounds without privacy", result["--allow-unsafe"])
    assert "[default: 8192; x>=1]" in " ".join(lines)
    assert result["--log-level"].startswith("--log-level <debug|info|warning|error>")
    assert "Least severe event that is logged" in " ".join(lines)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadParameter("arms", 1, "must be at least 2"), 2),
        (WrongCohort("no such run"), 2),
        (RunFailed("it failed"), 1),
        (Unavailable("no answer"), 75),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exit_codes_tell_broken_from_bad_input_and_from_what_may_work_later(error: Exception, code: int) -> None:
    def command() -> None:
        raise error

    assert exit_code_of(command) == code


@pytest.mark.parametrize("words", ["list policies --json -", "list -h"])
def test_a_reader_that_leaves_early_is_no_error(words: str) -> None:
    command = [sys.executable, "-m", "distrust.lab", *words.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        complaints = process.stderr.read()
    assert (process.returncode, complaints) == (0, "")


@pytest.mark.parametrize(("words", "both"), [("list policies", False), ("list policies --json -", True)])
def test_a_full_disk_under_the_output_is_one_line_and_75(words: str, *, both: bool) -> None:
    command = [sys.executable, "-m", "distrust.lab", *words.split()]
    with Path("/dev/full").open("w") as full:
        errors = full if both else subprocess.PIPE
        done = subprocess.run(command, stdout=full, stderr=errors, text=True, check=False)
    assert done.returncode == 75
    assert both or done.stderr == "the output cannot be written: No space left on device; mend that, and try again\n"


def test_a_ray_that_does_not_start_is_one_line_and_its_processes_had_no_slow_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = os.environ.get("PYTHONPATH")

    def init(**_: object) -> None:
        done = subprocess.run([sys.executable, "-c", "import rfc3987_syntax"], capture_output=True, check=False)
        assert done.stderr.endswith(b"ImportError: left out, as it takes long\n")
        raise RuntimeError("the node timed out\nduring startup")

    ray, bridge = ModuleType("ray"), ModuleType("ray.util.joblib")
    ray.init, bridge.register_ray = init, lambda: None  # type: ignore[attr-defined]
    ray.is_initialized, ray.shutdown = lambda: False, lambda: None  # type: ignore[attr-defined]
    for name, module in (("ray", ray), ("ray.util", ModuleType("ray.util")), ("ray.util.joblib", bridge)):
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(Unavailable) as caught, _config("ray", 2):
        pass
    expected = "RuntimeError: the node timed out during startup; --backend loky needs nothing else"
    assert caught.value.detail == f"Ray could not be started: {expected}"
    assert os.environ.get("PYTHONPATH") == before


def test_list_runs_reads_a_folder_of_any_name_and_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "a?mode=rwc#b%20"
    folder.mkdir()
    with closing(sqlite3.connect(folder / "server.sqlite3")) as database:
        database.execute("CREATE TABLE runs (run, state)")
        database.execute("INSERT INTO runs VALUES ('first', 'finished')")
        database.commit()
    result = json.loads(printed("list", "runs", "--data", str(folder), "--json", "-"))
    assert result == {"runs": {"first": "finished"}}
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert [path.name for path in folder.iterdir()] == ["server.sqlite3"]


@pytest.mark.parametrize("raw", [b"", b"no database " * 999])
def test_list_runs_refuses_what_is_no_servers_database(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "server.sqlite3").write_bytes(raw)
    with pytest.raises(BadParameter, match=r"server\.sqlite3 cannot be read as one"):
        app(["list", "runs", "--data", str(tmp_path)], standalone_mode=False)


def drip(service: BaseHTTPRequestHandler) -> None:
    """Send a byte every 50 ms, for three seconds."""
    service.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    for _ in range(60):
        service.wfile.write(b" ")
        time.sleep(0.05)


def test_a_service_that_sends_a_byte_now_and_then_counts_as_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distrust.lab.cli.party.TIMEOUT_SECONDS", 0.4)
    with serving(drip) as url, pytest.raises(Unavailable, match=r": no whole answer in 0\.4 seconds$"):
        app(["health", url], standalone_mode=False)


@pytest.mark.parametrize("row", ["(x'ff', 'finished')", "('first', NULL)"])
def test_list_runs_refuses_names_and_states_that_are_no_text(row: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "server.sqlite3")) as database:
        database.execute("CREATE TABLE runs (run, state)")
        database.execute(f"INSERT INTO runs VALUES {row}")
        database.commit()
    with pytest.raises(BadParameter, match=r"cannot be read as one \(a run's name or state is no text\)"):
        app(["list", "runs", "--data", str(tmp_path)], standalone_mode=False)


def test_runs_of_a_folder_that_is_not_there_are_refused_and_an_empty_folder_has_none(tmp_path: Path) -> None:
    with pytest.raises(BadParameter, match=r"data = '.*/none': is no folder"):
        app(["list", "runs", "--data", str(tmp_path / "none")], standalone_mode=False)
    empty = CliRunner().invoke(app, ["list", "runs", "--data", str(tmp_path), "--json", "-"])
    assert json.loads(empty.stdout) == {"runs": {}}
