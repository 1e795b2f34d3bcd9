"""Tests what a proxy does between callers and a service: the real HAProxy, with the configuration that is printed."""

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from distrust.common.protocol.messages.status import CohortList
from distrust.common.protocol.web.bodies import MOST_BODIES
from distrust.common.protocol.web.client import Http, Patience
from distrust.common.protocol.web.settings import ServiceSettings
from tests.support.attacks import Attacked, attacked, until
from tests.support.certificates import Certificates
from tests.support.floods import wrong_tickets
from tests.support.forked import forking
from tests.support.proxy import free_port, proxied, running, settings_of

pytestmark = pytest.mark.slow

WAITS = 512  # DISTRUST_MAX_WAITS
A_SECOND = 350  # requests of an honest fleet in a second
PROBLEM = "application/problem+json"


class Recorder(BaseHTTPRequestHandler):
    """Records the head of each request, and answers it unless it waits. Records what came after one that waits."""

    protocol_version = "HTTP/1.1"
    heads: ClassVar[list[dict[str, str]]] = []
    later: ClassVar[list[bytes]] = []

    def do_GET(self) -> None:
        self.heads.append(dict(self.headers))
        if "wait=60" in self.path:
            try:
                self.later.append(self.connection.recv(1))
            except ConnectionError:
                self.later.append(b"")
            self.close_connection = True
            return
        body = b'{"version":3,"cohorts":[]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        """Write no log."""


@contextmanager
def recorded(folder: Path, **limits: Any) -> Iterator[str]:
    """Yield the address of a proxy in front of a `Recorder`."""
    Recorder.heads.clear()
    Recorder.later.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Recorder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        own = {"port": server.server_port, "proxy_listen": f"127.0.0.1:{free_port()}"}
        settings: ServiceSettings = settings_of("shuffler", **own, **limits)
        with running(settings, folder):
            yield settings.proxy_listen
        server.shutdown()


def caller(where: str, source: str = "127.0.0.1") -> httpx.Client:
    return httpx.Client(base_url=f"http://{where}", transport=httpx.HTTPTransport(local_address=source), timeout=60)


def told(where: str, raw: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes. Return status, headers and body of the answer."""
    host, port = where.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(raw)
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    return int(lines[0].split()[1]), headers, body


def test_a_service_hears_of_its_caller_what_the_caller_says_and_nothing_of_its_way(tmp_path: Path) -> None:
    names = ("Forwarded", "Via", "X-Real-IP", "X-Forwarded-For", "X-Forwarded-Proto", "x-forwarded-host")
    others = ("X_Forwarded_For", "X-Client-IP", "True-Client-IP", "X-Cluster-Client-IP", "CF-Connecting-IP")
    way = dict.fromkeys((*names, *others), "x")
    with recorded(tmp_path) as where, caller(where, "127.0.0.2") as client:
        own = {"Host": "mixer.example", "Authorization": "Bearer sesame", "Accept": "*/*"}
        assert client.get("/v1/cohorts", headers={**own, **way}).is_success
    (heard,) = Recorder.heads
    heard = {name.lower(): value for name, value in heard.items()}
    assert heard == {name.lower(): value for name, value in own.items()} | {
        "accept-encoding": heard["accept-encoding"],
        "user-agent": heard["user-agent"],
    }


def test_halves_of_requests_are_refused_in_their_time_and_never_reach_the_service(tmp_path: Path) -> None:
    body = b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 8000\r\n\r\n{"
    with recorded(tmp_path, header_seconds=0.3, body_seconds=0.3) as where:
        status, headers, text = told(where, body)
        assert (status, headers["content-type"]) == (408, PROBLEM)
        assert json.loads(text)["type"] == "urn:distrust:problem:too-slow"
        assert told(where, b"GET /v1/x HTTP/1.1\r\nX: ")[0] == 408  # half a head is answered in HAProxy's own words
    assert Recorder.heads == []


def test_a_long_poll_ends_at_the_service_when_its_caller_hangs_up(tmp_path: Path) -> None:
    with recorded(tmp_path) as where:
        host, port = where.split(":")
        with socket.create_connection((host, int(port)), timeout=60) as poll:
            poll.sendall(b"GET /v1/x?wait=60 HTTP/1.1\r\nHost: x\r\n\r\n")
            until(lambda: len(Recorder.heads) == 1)
            assert Recorder.later == []
        until(lambda: Recorder.later == [b""])


@pytest.mark.parametrize("target", ["/v1/x?w%61it=60", "/v1/x?a=1&%77ait=6", "/v1/runs/a/event%73"])
def test_what_rules_would_read_otherwise_than_the_service_is_refused(target: str, tmp_path: Path) -> None:
    with recorded(tmp_path) as where:
        status, headers, _ = told(where, f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert (status, headers["content-type"]) == (400, PROBLEM)
        with caller(where) as client:
            assert client.get("/v1/x", params={"value": "50 % & more"}).is_success
    assert len(Recorder.heads) == 1


def test_a_crowd_that_holds_its_lane_up_holds_up_no_crowd_of_another_lane(tmp_path: Path) -> None:
    """Four calls of an address are in work, so its next ones go through the gate, unless they wait for news."""
    held, sources = "Host: x\r\nContent-Length: 0\r\n\r\n", [f"127.0.0.{number}" for number in range(2, 10)]
    with recorded(tmp_path, header_seconds=0.5) as where, ExitStack() as opened:
        host, port = where.split(":")

        def hold(source: str, method: str) -> None:
            made = opened.enter_context(socket.create_connection((host, int(port)), 60, source_address=(source, 0)))
            before = len(Recorder.heads)
            made.sendall(f"{method} /v1/x?wait=60 HTTP/1.1\r\n{held}".encode())
            until(lambda: len(Recorder.heads) > before)

        def served(source: str) -> bool:
            with caller(where, source) as client:
                answers = {
                    path: client.post(path).status_code
                    for path in ("/v1/x", "/v1/x?wait=5", "/v1/x/stage?wait=0", "/v1/x/stage?wait=5")
                }
            assert answers.pop("/v1/x/stage?wait=5") == 200
            assert len(set(answers.values())) == 1
            return set(answers.values()) == {200}

        for source in sources:
            for _ in range(4):
                hold(source, "GET")
        hold(sources[0], "POST")
        with ThreadPoolExecutor(len(sources)) as pool:  # all of them before the gate ends what holds the lane up
            first, *others = pool.map(served, sources)
    assert not first  # the one that holds its own lane up
    assert sum(others) >= 6  # of seven; each has its lane by a hash of its address


def test_an_address_has_so_many_large_bodies_in_work_and_another_one_its_own(tmp_path: Path) -> None:
    head = b"POST /v1/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 20000\r\n\r\n"
    with recorded(tmp_path, body_seconds=60) as where, ExitStack() as opened:
        host, port = where.split(":")
        for _ in range(MOST_BODIES):  # halves, which are in work until their time is over
            begun = socket.create_connection((host, int(port)), 60, source_address=("127.0.0.2", 0))
            opened.enter_context(begun).sendall(head)

        def one_more(source: str) -> int:
            with caller(where, source) as client:
                return client.post("/v1/x", content=bytes(20_000)).status_code

        until(lambda: one_more("127.0.0.2") == 429)
        assert one_more("127.0.0.1") == 200


def test_what_the_proxy_refuses_is_a_problem_document(tmp_path: Path) -> None:
    large = b"POST /v1/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 4097\r\n\r\n"
    settings = settings_of("shuffler", port=free_port(), proxy_listen=f"127.0.0.1:{free_port()}", max_body=4096)
    with running(settings, tmp_path):
        for raw, status, code in (
            (large, 413, "too-large"),
            (b"GET /v1/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 503, "unavailable"),  # it has not started
        ):
            got, headers, text = told(settings.proxy_listen, raw)
            document = json.loads(text)
            assert (got, headers["content-type"], document["status"]) == (status, PROBLEM, status)
            assert document["type"] == f"urn:distrust:problem:{code}"
            assert headers["x-content-type-options"] == "nosniff"
            assert ("retry-after" in headers) == (status == 503)


def test_beyond_its_rate_an_address_gets_429_and_another_one_is_served(tmp_path: Path) -> None:
    with recorded(tmp_path, caller_requests=2) as where:
        with caller(where, "127.0.0.2") as flood, caller(where) as honest:
            answers = [flood.get("/v1/x") for _ in range(10)]
            assert honest.get("/v1/x").is_success
        refused = [answer for answer in answers if answer.status_code == 429]
        assert {answer.status_code for answer in answers} == {200, 429}
        assert {answer.headers["retry-after"] for answer in refused} == {"1"}
        assert refused[0].json()["type"] == "urn:distrust:problem:too-many-requests"

        async def ours() -> list[CohortList]:
            async with Http(Patience(first=0.5)) as http:
                peer = http.peer(f"http://{where}")
                return await asyncio.gather(*(peer.get("/v1/cohorts", CohortList) for _ in range(5)))

        assert len(asyncio.run(ours())) == 5  # callers of ours come again until they are served


def test_a_token_has_one_rate_from_all_addresses_together(tmp_path: Path) -> None:
    with recorded(tmp_path, caller_requests=2) as where:
        statuses = set()
        for number in range(2, 14):  # one request of each address
            with caller(where, f"127.0.0.{number}") as client:
                statuses.add(client.get("/v1/x", headers={"Authorization": "Bearer one"}).status_code)
        assert statuses == {200, 429}
        with caller(where) as client:
            assert client.get("/v1/x", headers={"Authorization": "Bearer other"}).is_success


@pytest.fixture(scope="module")
def shuffler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """Yield a shuffler behind a proxy with the settings' defaults, but short times."""
    folder = tmp_path_factory.mktemp("shuffler")
    with forking(), attacked("shuffler", folder, DISTRUST_FIRST_SECONDS="3600") as direct:
        direct.prepare()
        with proxied("shuffler", direct, folder, header_seconds=0.5, idle_seconds=1) as result:
            yield result


def test_as_many_long_polls_as_a_service_takes_come_from_one_address_and_outlive_the_other_times(
    shuffler: Attacked,
) -> None:
    polls = [shuffler.connect(shuffler.poll().replace(b"wait=60", b"wait=3")) for _ in range(WAITS)]
    assert {poll.recv(65_536).split()[1] for poll in polls} == {b"200"}


def test_uploads_of_wrong_tickets_are_faults_and_callers_do_not_see_the_mark(
    shuffler: Attacked, tmp_path: Path
) -> None:
    raw = wrong_tickets(shuffler).whole()
    with proxied("shuffler", shuffler, tmp_path, caller_faults=1) as strict:
        statuses = []
        while "429" not in statuses:
            assert len(statuses) < 100
            connection = strict.connect(raw)
            head = connection.recv(65_536).partition(b"\r\n\r\n")[0].lower()
            statuses.append(head.split()[1].decode())
            assert b"x-distrust-fault" not in head
        assert set(statuses) == {"200", "429"}
        direct = replace(strict, port=strict.inside)
        assert b"x-distrust-fault: 1" in direct.connect(raw).recv(65_536).lower()


def test_an_honest_fleets_requests_are_none_too_many(shuffler: Attacked) -> None:
    with httpx.Client(base_url=shuffler.url) as client:
        path = shuffler.target.poll.partition("?")[0]
        assert {client.get(path).status_code for _ in range(2 * A_SECOND)} == {200}


def test_tls_is_the_proxys(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    both = made.issue("proxy", "localhost").together()
    with recorded(tmp_path, proxy_certificate=str(both)) as where:
        port = where.rpartition(":")[2]
        trusted = ssl.create_default_context(cafile=str(made.ca))
        with httpx.Client(verify=trusted) as client:
            assert client.get(f"https://localhost:{port}/v1/x").is_success
            with pytest.raises(httpx.ConnectError, match="IP address mismatch"):
                client.get(f"https://127.0.0.1:{port}/v1/x")
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"http://localhost:{port}/v1/x")
        assert len(Recorder.heads) == 1
