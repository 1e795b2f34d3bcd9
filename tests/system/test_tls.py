"""Tests a whole run over TLS with client certificates, and the authority that docs/reference/operations.md makes."""

import json
import re
import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import distrust
from distrust.common.errors import Unavailable
from distrust.common.protocol.web.tls import CALLER_FILES, caller_context, service_context
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import NAMES, Stack, make_tokens
from distrust.server.settings import ServerSettings
from tests.support.certificates import Certificates, call_with
from tests.support.forked import Process, forking
from tests.support.http_runs import until

ROOT = Path(__file__).parents[2]
RUN = """
run = "over-tls"
horizon = 128
[policy]
first_batch = 5
[mechanism]
name = "local-laplace-discrete"
epsilon = 2.0
via = "shuffler"
[environment]
name = "bernoulli"
seed = 4
means = [0.2, 0.8]
[fleet]
processes = 1
"""


@contextmanager
def serving(party: str, folder: Path, variables: dict[str, str]) -> Iterator[str]:
    """Yield the address of a service. It is stopped at the end."""
    log = folder / f"{party}.log"
    log.touch()
    process = Process([f"distrust.{party}"], variables, log, folder)
    try:
        until(lambda: b'"listening"' in log.read_bytes() or process.poll() is not None)
        (listening,) = (line for line in log.read_bytes().splitlines() if b'"listening"' in line)
        yield f"https://localhost:{json.loads(listening)['port']}"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_a_run_over_tls_is_played_inspected_and_refused_to_callers_without_a_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server and the fleet call by certificates of their own. The services listen on all addresses."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "files").mkdir()
    ours, folder = Certificates(tmp_path / "files"), DataDir(tmp_path / "data")
    folder.make()
    make_tokens(folder)
    own = {
        "DISTRUST_HOST": "0.0.0.0",
        "DISTRUST_PORT": "0",
        "DISTRUST_OPERATOR_TOKEN_FILE": str(folder.token_file),
        "PYTHONPATH": str(ROOT / "src"),
    }
    inspector = {"DISTRUST_INSPECTOR_TOKEN_FILE": str(folder.inspector_file)}
    with forking(), serving("shuffler", tmp_path, own | ours.service("mixer") | inspector) as shuffler:
        calling = {"DISTRUST_SHUFFLER_URL": shuffler} | ours.caller("learner-calls")
        with serving("server", tmp_path, own | ours.service("learner") | calling) as server:
            call_with(monkeypatch, {"DISTRUST_CA": str(ours.ca)})
            with pytest.raises(Unavailable, match=rf"^GET {server}/v1/runs: TLS: the service wants a client certif"):
                distrust.connect(server)
            call_with(monkeypatch, ours.caller("fleet"))
            tokens = {"token": folder.token(), "inspector": folder.inspector_token()}
            services = distrust.connect(server, shuffler=shuffler, aggregator="https://localhost:9", **tokens)
            result = services.run(RUN)
            assert sum(result.pulls) == 128
            assert services.view("over-tls").state == "finished"
            (sight, *_) = services.inspect(result).party_views
            assert sight.by_intermediary
            assert {message.stage for message in sight.by_intermediary.messages} >= {"report", "batch"}
    caller_context.cache_clear()


def test_a_stack_of_this_machine_speaks_plain_http_whatever_its_starters_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = DataDir(tmp_path)
    make_tokens(folder)
    stack = Stack(folder)
    stack._ports = dict.fromkeys(NAMES, 1)
    starters = {"DISTRUST_TLS_CERT": "/nowhere", "DISTRUST_TLS_KEY": "/nowhere", "DISTRUST_CLIENT_CA": "/nowhere"}
    for name, value in (starters | stack._environment("server")).items():
        monkeypatch.setenv(name, value)
    settings = ServerSettings()
    settings.check()
    assert settings.tls() is None


@pytest.mark.slow
def test_the_commands_of_the_page_make_files_by_which_a_caller_and_a_service_know_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the strictest checks that a Python of ours may make, those of 3.13."""
    page = (ROOT / "docs" / "reference" / "operations.md").read_text("utf-8")
    (commands,) = re.findall(r"```sh\n(umask 077\n.*?)```", page, re.DOTALL)
    subprocess.run(["sh", "-e"], input=commands, cwd=tmp_path, text=True, check=True, capture_output=True)
    files = (str(tmp_path / name) for name in ("ca.pem", "fleet.pem", "fleet.key"))
    call_with(monkeypatch, dict(zip(CALLER_FILES, files, strict=True)))
    here = service_context(tmp_path / "server.pem", tmp_path / "server.key", tmp_path / "ca.pem")
    for context in (here, caller := caller_context()):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    caller_context.cache_clear()
    for name in ("learner.example", "127.0.0.1"):
        to_service, to_caller = ssl.MemoryBIO(), ssl.MemoryBIO()
        sides = [
            caller.wrap_bio(to_caller, to_service, server_hostname=name),
            here.wrap_bio(to_service, to_caller, server_side=True),
        ]
        for _ in range(4):
            for side in tuple(sides):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
        assert sides[0].getpeercert()
        assert "fleet of the east" in str(sides[1].getpeercert())
