"""Tests that a service bounds for itself what one caller may take of it: over real sockets, without a proxy.

Fairness, and the pace of connections, heads and bodies, are a proxy's: `test_attacks_through_proxy.py`.
"""

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from distrust.common.protocol.messages.status import CohortList
from distrust.common.protocol.web.client import Http, Patience
from distrust.common.wire import encode_blob
from tests.support.attacks import TOKEN, Attacked, attacked, until
from tests.support.cohorts import address
from tests.support.picked import picked

LARGER = 2.0  # times the memory of a fresh service
BODY_SECONDS = 2.0
PARTIES = ["shuffler", "aggregator", "server"]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of the shuffler at which the attacked server opens its cohorts."""
    with attacked("shuffler", tmp_path_factory.mktemp("elsewhere")) as service:
        yield service.url


@pytest.fixture(scope="module", params=picked(PARTIES, 1, "attacked services"))
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, elsewhere: str
) -> Iterator[Attacked]:
    """Yield one service of each kind for most attacks. A later attack shows the harm that an earlier one left."""
    with attacked(request.param, tmp_path_factory.mktemp("attacked"), DISTRUST_SHUFFLER_URL=elsewhere) as result:
        result.prepare()
        yield result


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """Yield a shuffler with a short time for bodies."""
    with attacked("shuffler", tmp_path_factory.mktemp("hasty"), DISTRUST_BODY_SECONDS=str(BODY_SECONDS)) as result:
        result.open("target", 8)
        yield result


def test_abandoned_long_polls_end_with_their_callers(service: Attacked) -> None:
    before = service.counted(499)
    for _ in range(20):
        service.connect(service.poll())
    time.sleep(0.5)  # so that the polls wait
    service.hang_up()
    until(lambda: service.counted(499) - before == 20)


@pytest.mark.parametrize(
    ("items", "size"),
    [
        pytest.param(b'{"slot":1,"ticket":"AA","body":"AA"},', 20_000_000, id="more-bytes-than-a-body-may-have"),
        pytest.param(b'{"slot":1,"ticket":"AA","body":"AA"},', 4_000_000, id="more-items-than-an-upload-may-have"),
        pytest.param(b"1,", 4_000_000, id="values-that-are-no-items"),
        pytest.param(b"[],", 4_000_000, id="empty-lists"),
        pytest.param(b"[", 4_000_000, id="nested-lists"),
    ],
)
def test_bodies_of_bogus_items_are_refused_before_they_are_parsed(service: Attacked, items: bytes, size: int) -> None:
    service.forget_peak()
    body = b'{"version":3,"cohort":"target","stage":"report","items":[' + items * (size // len(items)) + b"1]}"
    kind = {"Content-Type": "application/json"}
    for _ in range(2):
        answer = httpx.post(service.url + service.target.upload, content=body, headers=kind, timeout=60)
        assert (answer.status_code, answer.json()["title"]) == (413, "too large")
        assert len(answer.content) < 500
    assert service.peak() < LARGER * service.fresh


def test_an_upload_of_bogus_items_is_answered_with_their_number_and_at_once(hasty: Attacked) -> None:
    item = {"slot": 1, "ticket": "A" * 86, "body": "AA"}
    items = [{**item, "slot": slot} for slot in range(4000)]
    digest = encode_blob(hasty.open("crowd", 5000).digest())
    upload = {"version": 3, "cohort": "crowd", "digest": digest, "stage": "report", "items": items}
    answer = httpx.post(f"{hasty.url}/v1/cohorts/{address('crowd')}/reports", json=upload, timeout=60)
    assert answer.json()["reasons"] == {"urn:distrust:problem:bad-ticket": 4000}
    assert len(answer.json()["refused"]) == 1024
    assert len(answer.content) < len(answer.request.content)


def test_invented_methods_and_paths_leave_no_label_in_the_metrics(service: Attacked) -> None:
    def metrics() -> int:
        return len(httpx.get(f"{service.url}/metrics").content)

    with httpx.Client() as client:
        client.request("INVENTED", f"{service.url}{service.target.upload}")
        client.get(f"{service.url}/nowhere")
        metrics()  # a first look has labels of its own
        before = metrics()
        for number in range(100):
            client.request(f"M{number}", f"{service.url}{service.target.upload}")
            client.get(f"{service.url}/{number}")
    assert metrics() < before + 100  # numbers grow by some digits


@pytest.mark.slow
def test_half_a_body_is_refused_when_its_time_is_over_however_slowly_it_goes_on(hasty: Attacked) -> None:
    began = time.monotonic()
    head = hasty.upload(1_000_000) + b"{"
    dripping = hasty.connect(head)
    dripping.settimeout(0.05)
    received = b""
    while b"too slow" not in received:
        assert time.monotonic() - began < 30 * BODY_SECONDS
        drip(dripping)
        received += read_from(dripping)
    assert b" 408 " in received


def drip(connection: socket.socket) -> None:
    try:
        connection.sendall(b"x")
    except OSError:
        return


def read_from(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65_536)
    except TimeoutError:
        return b""


def test_hanging_up_in_the_middle_of_a_body_is_quiet(service: Attacked) -> None:
    failed, before = service.counted(500), service.counted(499)
    for _ in range(20):
        service.connect(service.upload(1000) + b"{")
    time.sleep(0.5)  # so that the service has let in most of them
    service.hang_up()
    until(lambda: service.counted(499) - before == 20)
    assert service.counted(500) == failed
    assert "Traceback" not in service.log_text()


HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (HEAD + b"X: ", b"x"),
        (b"GET /", b"x"),
        (HEAD + b"\r\n" + b"GET /", b"x"),
        (CHUNKED + b"0\r\n", b"ab:cd\r\n"),
        (CHUNKED + b"0\r\nab:", b"x"),
        (CHUNKED + b"1;", b"x"),
    ],
    ids=["header", "target", "second request", "trailers", "trailer", "chunk extension"],
)
def test_what_has_no_end_and_no_use_ends_its_connection_and_is_not_kept(
    hasty: Attacked, start: bytes, more: bytes
) -> None:
    endless = hasty.connect(start)
    endless.settimeout(0.05)
    sent, closed = 0, False
    while not closed:
        assert sent < 2**20  # of which a socket's buffers hold a part
        try:
            sent += endless.send(more * (4096 // len(more)))
            read_from(endless)
        except OSError:
            closed = True


def test_more_headers_than_a_caller_needs_are_refused(hasty: Attacked) -> None:
    assert b" 400 " in read_from(hasty.connect(HEAD + b"a:b\r\n" * 100 + b"\r\n"))
    assert b" 200 " in read_from(hasty.connect(HEAD + b"a:b\r\n" * 99 + b"\r\n"))


def test_a_trailer_is_no_header(hasty: Attacked) -> None:
    """A proxy's rules have seen the head alone."""
    assert b" 415 " in read_from(hasty.connect(CHUNKED + b"0\r\nContent-Type: application/json\r\n\r\n"))


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz\r\n\r\n",
        b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        HEAD + b"Host: localhost\r\n\r\n",
        b"GET http://localhost/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /healthz#part HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["0.9", "1.0", "no host", "two hosts", "absolute", "fragment"],
)
def test_what_a_proxy_might_read_otherwise_is_refused(hasty: Attacked, head: bytes) -> None:
    assert b" 400 " in read_from(hasty.connect(head))


@pytest.mark.parametrize("ahead", [HEAD + b"\r\n", b"\x00nonsense\r\n\r\n"])
def test_what_comes_before_an_answer_closes_the_connection_and_is_no_answer_to_it(
    hasty: Attacked, ahead: bytes
) -> None:
    """A request ahead would hide from the service that the caller of the one in work has hung up."""
    before = hasty.counted(499)
    held = hasty.connect(hasty.poll() + ahead)
    assert read_from(held) == b""
    until(lambda: hasty.counted(499) == before + 1)


def test_beyond_the_last_resort_a_service_answers_a_bare_503_and_callers_come_again(tmp_path: Path) -> None:
    """Only connections can bring a service there: it answers before it looks at a request."""
    with attacked("shuffler", tmp_path, DISTRUST_MAX_CONNECTIONS="16") as service:
        for _ in range(40):
            service.connect()
        until(lambda: httpx.get(f"{service.url}/healthz").status_code == 503)

        async def call() -> int:
            async with Http(Patience(first=0.2)) as http:
                asking = asyncio.create_task(http.peer(service.url, TOKEN).get("/v1/cohorts", CohortList))
                await asyncio.sleep(0.5)  # so that it is refused at least once
                assert not asking.done()
                service.hang_up()
                return len((await asking).cohorts)

        assert asyncio.run(call()) == 0
