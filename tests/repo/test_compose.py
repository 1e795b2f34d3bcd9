"""Tests that docker-compose.yml and Dockerfile name only what exists, and that what they start works.

The commands fork from one process that has imported the project; their words and variables are the file's own.
"""

import importlib
import json
import re
import signal
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from distrust.client.fleet.settings import FleetSettings
from distrust.common.protocol.web.proxy import STOP_SECONDS
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import NAMES, choose_ports, make_tokens
from tests.support.attacks import until
from tests.support.compose import ROOT, Loopback, Service, load, mounts
from tests.support.proxy import listens

COMPOSE = load()
SERVICES: dict[str, Service] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
ORIGIN = "DISTRUST_DASHBOARD_ORIGIN"
PORTS = {name: SERVICES[name]["environment"]["DISTRUST_PORT"] for name in NAMES}
PROXIES = {f"{name}-proxy": name for name in NAMES}
LISTENS = {
    proxy: SERVICES[name]["environment"]["DISTRUST_PROXY_LISTEN"].removeprefix(":") for proxy, name in PROXIES.items()
}
"""The port of each proxy."""


def test_the_parties_are_there() -> None:
    assert set(SERVICES) == {*NAMES, "token", "fleet", "run", *PROXIES, *(f"{proxy}-config" for proxy in PROXIES)}


def test_a_proxy_has_its_configuration_and_neither_a_token_nor_a_database() -> None:
    for proxy, name in PROXIES.items():
        assert mounts(SERVICES[proxy]) == {"/proxy": proxy}
        assert "environment" not in SERVICES[proxy]
        assert SERVICES[proxy]["command"][-1] == SERVICES[f"{proxy}-config"]["command"][-1] == "/proxy/haproxy.cfg"
        assert SERVICES[f"{proxy}-config"]["environment"] == SERVICES[name]["environment"]
        holders = {service for service in SERVICES if proxy in mounts(SERVICES[service]).values()}
        assert holders == {proxy, f"{proxy}-config"}
        assert mounts(SERVICES[f"{proxy}-config"]) == {"/proxy": proxy}


def test_a_service_is_reached_through_proxies_alone() -> None:
    for proxy, name in PROXIES.items():
        assert SERVICES[name]["networks"] == [name]
        assert {other for other, service in SERVICES.items() if name in service.get("networks", ())} <= {name, *PROXIES}
        assert {name, "callers"} <= set(SERVICES[proxy]["networks"])
        assert SERVICES[name]["environment"]["DISTRUST_BEHIND_PROXY"] == "1"
        assert SERVICES[name]["environment"]["DISTRUST_PROXY_TARGET"] == f"{name}:{PORTS[name]}"
    for intermediary in ("shuffler-proxy", "aggregator-proxy"):
        assert "server" in SERVICES[intermediary]["networks"]
    assert SERVICES["run"]["networks"] == SERVICES["fleet"]["networks"] == ["callers"]
    used = {network for service in SERVICES.values() for network in service.get("networks", ())}
    assert used == set(COMPOSE["networks"])
    # All others have no network, or none but that in which nothing else is.
    assert {name for name, service in SERVICES.items() if "networks" not in service} == {
        "token",
        *(f"{proxy}-config" for proxy in PROXIES),
    }


def test_the_image_has_the_driver_that_a_database_on_postgresql_needs() -> None:
    (lock,) = re.findall(r"pip install --require-hashes -r (\S+)", DOCKERFILE)
    pinned = set(re.findall(r"^(\S+)==", (ROOT / lock).read_text("utf-8"), re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert extras["postgres"] == ["psycopg[binary]>=3.2"]
    assert {"psycopg", "psycopg-binary"} <= pinned


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_of_a_service_is_a_setting_of_it(name: str) -> None:
    module = importlib.import_module(f"distrust.{name}.app")
    settings = getattr(module, f"{name.capitalize()}Settings")
    known = {f"DISTRUST_{field.upper()}" for field in settings.model_fields}
    assert set(SERVICES[name]["environment"]) <= known


def test_every_variable_of_the_fleet_is_a_setting_of_it() -> None:
    known = {f"DISTRUST_{field.upper()}" for field in FleetSettings.model_fields}
    assert set(SERVICES["fleet"]["environment"]) <= known


@pytest.mark.parametrize("name", NAMES)
def test_a_health_check_asks_the_port_that_its_service_listens_on(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"][-1] == f"http://127.0.0.1:{PORTS[name]}"


def test_addresses_name_services_and_their_ports() -> None:
    texts = [str(value) for service in SERVICES.values() for value in service.get("environment", {}).values()]
    texts += [word for service in SERVICES.values() for word in service["command"]]
    named = re.findall(r"http://([a-z-]+):(\d+)", " ".join(texts))
    assert {host for host, _ in named} == set(PROXIES)
    assert all(LISTENS[host] == port for host, port in named)


def test_the_override_of_the_deployment_page_shows_pages_the_intermediaries_and_publishes_loopback_only() -> None:
    page = (ROOT / "docs/how-to/deploy.md").read_text("utf-8")
    result = re.search(r"```yaml\n# docker-compose.override.yml\n(.*?)```", page, re.DOTALL)
    assert result
    services = yaml.safe_load(result[1])["services"]
    server = services.pop("server")["environment"]
    published = {name: services.pop(f"{name}-proxy")["ports"] for name in list(services) if name in NAMES}
    for name, service in services.items():
        settings = importlib.import_module(f"distrust.{name}.app")
        origin = getattr(settings, f"{name.capitalize()}Settings")(dashboard_origin=service["environment"][ORIGIN])
        assert origin.dashboard_origins == (f"http://127.0.0.1:{PORTS['server']}",)
        assert published[name] == [f"127.0.0.1:{PORTS[name]}:{LISTENS[f'{name}-proxy']}"]
        assert server[f"DISTRUST_{name.upper()}_READERS_URL"] == f"http://127.0.0.1:{PORTS[name]}"
    assert {*services, "server"} == set(NAMES)
    assert f"{ORIGIN}=https://learner.example" in page


def test_only_the_server_is_published_and_on_loopback_only() -> None:
    assert {name: service["ports"] for name, service in SERVICES.items() if "ports" in service} == {
        "server-proxy": [f"127.0.0.1:{PORTS['server']}:{LISTENS['server-proxy']}"]
    }


def test_every_container_has_longer_to_stop_than_requests_in_flight_have() -> None:
    for name, service in SERVICES.items():
        assert int(service["stop_grace_period"].removesuffix("s")) > STOP_SECONDS, name


@pytest.mark.parametrize("name", SERVICES)
def test_no_party_writes_a_core_dump(name: str) -> None:
    assert SERVICES[name]["ulimits"] == {"core": 0}


def test_clients_hold_neither_the_operators_token_nor_any_volume_of_another_party() -> None:
    """They read one secret, their participation token. Their own volume has the file that notes who has taken part."""
    fleet = SERVICES["fleet"]
    assert fleet["volumes"] == ["participation:/secret:ro", "clients:/data"]
    assert fleet["environment"]["DISTRUST_MEMORY_FILE"].startswith("/data/")
    secrets = {name: value for name, value in fleet["environment"].items() if "TOKEN" in name}
    assert secrets == {"DISTRUST_PARTICIPATION_TOKEN_FILE": "/secret/fleet.token"}
    assert [name for name in SERVICES if "clients" in mounts(SERVICES[name]).values()] == ["fleet"]
    assert [name for name in SERVICES if "participation" in mounts(SERVICES[name]).values()] == ["token", "fleet"]


def test_the_one_shot_command_writes_each_secret_where_its_reader_looks(tmp_path: Path) -> None:
    folder = DataDir(tmp_path / "secret")
    folder.make()
    make_tokens(folder)
    written = mounts(SERVICES["token"])
    for name, (path, volume) in {
        "server": ("/secret/operator.token", "secret"),
        "shuffler": ("/secret/inspector/inspector.token", "inspector"),
        "fleet": ("/secret/fleet.token", "participation"),
    }.items():
        assert path in SERVICES[name]["environment"].values()
        inside = next(here for here, own in mounts(SERVICES[name]).items() if own == volume)
        there = next(here for here, own in written.items() if own == volume)
        assert (tmp_path / path.replace(inside, there.removeprefix("/"), 1)).is_file()
    assert SERVICES["server"]["environment"]["DISTRUST_PARTICIPANTS_FILE"] == "/secret/participants.json"
    listed = (tmp_path / "secret" / "participants.json").read_text("utf-8")
    assert folder.fleet_token() not in listed


def test_only_the_intermediaries_hold_what_opens_their_transcripts() -> None:
    """They say who sent which record; the server, which opens records, must not be able to ask."""
    held = {name for name, service in SERVICES.items() if "inspector" in mounts(service).values()}
    assert held == {"token", "shuffler", "aggregator"}
    for name in ("shuffler", "aggregator"):
        assert SERVICES[name]["environment"]["DISTRUST_INSPECTOR_TOKEN_FILE"].startswith("/secret/inspector/")


def test_no_two_services_share_a_database() -> None:
    volumes = [mounts(SERVICES[name])["/data"] for name in NAMES]
    assert len(set(volumes)) == len(NAMES)


def test_every_volume_is_declared() -> None:
    used = {volume for service in SERVICES.values() for volume in mounts(service).values()}
    assert used == set(COMPOSE["volumes"])


def test_one_service_that_all_wait_for_builds_the_image_and_no_registry_is_asked_for_it() -> None:
    """Six builds would give one name to six images, and the next `docker compose up` would replace all containers."""
    assert [name for name, service in SERVICES.items() if "build" in service] == ["token"]
    parties = [service for name, service in SERVICES.items() if name not in PROXIES]
    assert {(service["image"], service["pull_policy"]) for service in parties} == {("distrust", "never")}
    (proxies,) = {SERVICES[proxy]["image"] for proxy in PROXIES}
    assert re.fullmatch(r"haproxy:\d+\.\d+\.\d+", proxies)  # one that does not change by itself
    after = {name: set(service.get("depends_on", ())) for name, service in SERVICES.items()}
    waiting = {"token"}
    for _ in SERVICES:
        waiting |= {name for name, others in after.items() if others & waiting}
    assert waiting == set(SERVICES)


def test_no_service_may_gain_rights() -> None:
    for service in SERVICES.values():
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"]
        assert "no-new-privileges:true" in service["security_opt"]


def test_the_image_runs_without_rights_from_the_lock() -> None:
    assert re.search(r"^FROM python:3\.1[1-9]", DOCKERFILE, re.MULTILINE)
    user = re.findall(r"^USER (\w+)$", DOCKERFILE, re.MULTILINE)
    assert user[-1:] not in ([], ["root"])
    assert "--require-hashes -r requirements-runtime.lock" in DOCKERFILE


def test_everything_that_the_image_copies_is_there() -> None:
    copied = [word for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE) for word in line.split()[:-1]]
    assert {"common", "client", "shuffler", "aggregator", "server", "lab"} <= set(copied)
    assert all((ROOT / name).exists() for name in copied)


class Up:
    """`docker compose up`, as far as it can be had without Docker."""

    def __init__(self, folder: Path) -> None:
        short = (ROOT / "lab/runs/demo.toml").read_text("utf-8")
        short = re.sub(r"^horizon = \d+", "horizon = 640", short, flags=re.MULTILINE)
        short = re.sub(r"^first_batch = \d+", "first_batch = 6", short, flags=re.MULTILINE)
        (folder / "demo.toml").write_text(short, "utf-8")
        free = choose_ports(0, [*NAMES, *PROXIES])
        ports = {port: free[name] for name, port in {**PORTS, **LISTENS}.items()}
        self.loopback = Loopback(folder, ports, {"/app/lab/runs/demo.toml": folder / "demo.toml"})
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> subprocess.Popen[bytes]:
        self.running[name] = self.loopback.start(SERVICES[name], self.folder / f"{name}.log")
        return self.running[name]

    def until_healthy(self, name: str) -> None:
        self.until_logged(name, '"port"')  # it listens: before, each check would be a process for nothing
        end = time.monotonic() + 300
        while not self.loopback.healthy(SERVICES[name]):
            assert self.running[name].poll() is None, self.log(name)
            assert time.monotonic() < end, self.log(name)
            time.sleep(0.05)

    def until_logged(self, name: str, words: str) -> None:
        end = time.monotonic() + 300
        while words not in self.log(name):
            assert self.running[name].poll() is None, self.log(name)
            assert time.monotonic() < end, self.log(name)
            time.sleep(0.05)

    def start_proxy(self, proxy: str) -> None:
        """Write the configuration of a proxy, and start it."""
        assert self.start(f"{proxy}-config").wait(300) == 0, self.log(f"{proxy}-config")
        port = self.loopback.ports[LISTENS[proxy]]
        self.start(proxy)
        until(lambda: listens(port) or self.running[proxy].poll() is not None)
        assert self.running[proxy].poll() is None, self.log(proxy)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text("utf-8")

    def ended(self, process: subprocess.Popen[bytes]) -> int | None:
        """Return the exit code; None after three minutes, which is longer than any stage of a cohort lasts."""
        try:
            return process.wait(600)
        except subprocess.TimeoutExpired:
            return None

    def ends(self) -> str:
        """Return the last lines of all logs."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"== {log.name}\n" + "\n".join(log.read_text("utf-8").splitlines()[-15:]) for log in logs)

    def down(self) -> None:
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            process.wait(120)


@pytest.fixture
def compose_up(tmp_path: Path) -> Iterator[Up]:
    up = Up(tmp_path)
    yield up
    up.down()


@pytest.mark.slow
def test_the_files_commands_variables_and_health_checks_run_a_whole_run(compose_up: Up) -> None:
    up = compose_up
    assert up.start("token").wait(300) == 0, up.log("token")
    assert not up.loopback.healthy(SERVICES["server"])  # a health check must be able to fail
    for name in ("shuffler", "aggregator", "server"):
        up.start(name)
        up.until_healthy(name)
        up.start_proxy(f"{name}-proxy")
    run = up.start("run")
    assert SERVICES["fleet"]["restart"] == "on-failure"  # it may come before its run; here it waits for it instead
    up.until_logged("run", "round 1 ")
    fleets = [up.start("fleet"), up.loopback.start(SERVICES["fleet"], up.folder / "fleet-2.log")]
    assert up.ended(run) == 0, up.ends()
    assert [up.ended(fleet) for fleet in fleets] == [0, 0], up.ends()
    result = json.loads((up.folder / mounts(SERVICES["run"])["/data"] / "demo.json").read_text("utf-8"))
    assert sum(result["pulls"]) == 640
    assert result["chosen"] is not None
    assert result["guarantee"]["kind"] == "pure"
    # A second `docker compose up` finds the volumes, the tokens and the finished run.
    assert up.start("token").wait(300) == 0, up.log("token")
    again, fleet = up.start("run"), up.start("fleet")
    assert [up.ended(again), up.ended(fleet)] == [0, 0], up.ends()
    repeated = json.loads((up.folder / mounts(SERVICES["run"])["/data"] / "demo.json").read_text("utf-8"))
    assert (repeated["pulls"], repeated["chosen"]) == (result["pulls"], result["chosen"])
