"""Tests that one caller without a token cannot take a service down: attacks over real sockets, beside honest clients.

Honest work keeps half of its speed during an attack, and the service stays below twice the memory that it had before.
docs/performance.md has the measured figures. A test measures both speeds one right after the other. It may repeat an
attack: other load slows some measurements, and a service that an attack slows down is slow in all of them.
"""

import json
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from distrust.common.wire import encode_blob
from tests.support.attacks import Attacked, attacked, closed, until
from tests.support.cohorts import address

SLOWER = 2.0
LARGER = 2.0
ATTEMPTS = 6
TIMES = 6  # pieces of honest work
HEAD_SECONDS, BODY_SECONDS = 1.0, 2.0
PARTIES = ["shuffler", "aggregator", "server"]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of the shuffler at which the attacked server opens its cohorts."""
    with attacked("shuffler", tmp_path_factory.mktemp("elsewhere")) as service:
        yield service.url


@pytest.fixture(scope="module", params=PARTIES)
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, elsewhere: str
) -> Iterator[Attacked]:
    """Yield one service of each kind for most attacks. A later attack shows the harm that an earlier one left."""
    allow_sockets(4096)
    with attacked(request.param, tmp_path_factory.mktemp("attacked"), DISTRUST_SHUFFLER_URL=elsewhere) as result:
        result.prepare()
        yield result


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """Yield a shuffler with short times for heads and bodies."""
    limits = {"DISTRUST_HEADER_SECONDS": str(HEAD_SECONDS), "DISTRUST_BODY_SECONDS": str(BODY_SECONDS)}
    limits["DISTRUST_BODY_RATE"] = "1e9"  # the largest body must be able to arrive in that time
    with attacked("shuffler", tmp_path_factory.mktemp("hasty"), **limits) as result:
        result.open("target", 8)
        yield result


def allow_sockets(number: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < number:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(number, hard), hard))


def check_unhurt(service: Attacked, attack: Callable[[], None]) -> None:
    """Assert that honest work right after `attack` has begun keeps half of its speed, and that memory stays bounded."""
    service.forget_peak()
    result: list[float] = []
    while len(result) < ATTEMPTS:
        before = service.honest_seconds(TIMES)
        attack()
        result.append(service.honest_seconds(TIMES) / before)
        service.hang_up()
        if result[-1] <= SLOWER:
            break
    assert service.peak() < LARGER * service.fresh
    assert result[-1] <= SLOWER, f"honest work took {result} times as long under attack"


def check_unhurt_by_process(service: Attacked, work: list[str]) -> list[tuple[str, bool]]:
    """Assert the promises of `check_unhurt` while another process attacks without a pause.

    Return the answers that the attacker got: their status, and whether they have a Retry-After header.
    """
    command = [sys.executable, "-m", "tests.support.attacker", str(service.port), service.target.upload, *work]
    service.forget_peak()
    result, answers = list[float](), list[tuple[str, bool]]()
    while len(result) < ATTEMPTS:
        before = service.honest_seconds(TIMES)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attacker:
            assert attacker.stdout is not None
            assert attacker.stdout.readline() == "begun\n"
            result.append(service.honest_seconds(TIMES) / before)
            printed, _ = attacker.communicate()
        answers += json.loads(printed)
        if result[-1] <= SLOWER:
            break
    assert service.peak() < LARGER * service.fresh
    assert result[-1] <= SLOWER, f"honest work took {result} times as long under attack"
    return answers


def test_abandoned_long_polls_end_with_their_callers(service: Attacked) -> None:
    before, left_out = service.counted(499), service.left_out()
    for _ in range(100):
        service.connect(service.poll()).close()
    until(lambda: service.counted(499) - before + service.left_out() - left_out == 100)
    for _ in range(20):
        service.connect(service.poll())
    time.sleep(0.5)  # so that the polls wait
    service.hang_up()
    until(lambda: service.counted(499) - before + service.left_out() - left_out == 120)


@pytest.mark.alone
def test_thousands_of_abandoned_long_polls_slow_no_client(service: Attacked) -> None:
    def attack() -> None:
        for _ in range(3000):
            service.connect(service.poll()).close()

    check_unhurt(service, attack)


@pytest.mark.alone
def test_long_polls_that_stay_slow_no_client(service: Attacked) -> None:
    def attack() -> None:
        for _ in range(600):
            service.connect(service.poll())

    check_unhurt(service, attack)


@pytest.mark.alone
@pytest.mark.parametrize("party", ["shuffler", "aggregator"])
def test_long_polls_that_stay_on_as_many_cohorts_slow_no_client(party: str, tmp_path: Path) -> None:
    def attack() -> None:
        service.wait_on_cohorts(500)
        time.sleep(1.0)  # so that the polls wait

    allow_sockets(4096)
    limits = {"DISTRUST_FIRST_SECONDS": "3600", "DISTRUST_NEW_CONNECTIONS": "1e4"}
    with attacked(party, tmp_path, **limits) as service:
        service.prepare()
        check_unhurt(service, attack)


@pytest.mark.alone
def test_halves_of_heads_slow_no_client(service: Attacked) -> None:
    def attack() -> None:
        for _ in range(400):
            service.connect(b"GET /healthz HTTP/1.1\r\nX: ")

    check_unhurt(service, attack)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("service", "bodies", "size"),
    [
        pytest.param("server", 8, 15_000_000, id="server-eight-large"),
        pytest.param("shuffler", 30, 600_000, id="shuffler-thirty-middling"),
        pytest.param("aggregator", 8, 15_000_000, id="aggregator-eight-large"),
    ],
    indirect=["service"],
)
def test_large_bodies_without_end_slow_no_client(service: Attacked, bodies: int, size: int) -> None:
    answers = check_unhurt_by_process(service, [str(bodies), str(size)])
    assert answers
    assert {status for status, _ in answers} <= {"400", "404", "409", "413", "422", "503"}
    assert all(retry for status, retry in answers if status == "503")


@pytest.mark.parametrize(
    ("head", "size", "status", "ends"),
    [
        pytest.param("GET /healthz", 120_000, b"413", True, id="refused-large"),
        pytest.param("GET /healthz", 10_000, b"413", False, id="refused-small"),
        pytest.param("POST /nowhere", 120_000, b"404", True, id="unread-large"),
        pytest.param(f"POST /v1/cohorts/{address('target')}/reports", 120_000, b"422", False, id="read-large"),
    ],
)
def test_a_large_body_that_nothing_reads_ends_its_connection(
    hasty: Attacked, head: str, size: int, status: bytes, *, ends: bool
) -> None:
    """The service closes the connection. Its sender needs a new one, and the rate of new ones is limited."""
    kind = f"Content-Type: application/json\r\nContent-Length: {size}"
    connection = hasty.connect(f"{head} HTTP/1.1\r\nHost: localhost\r\n{kind}\r\n\r\n".encode() + b"x" * size)
    connection.settimeout(30)
    assert connection.recv(65_536).split()[1] == status
    if ends:
        until(lambda: closed(connection))
    else:
        time.sleep(0.3)
        assert not closed(connection)


@pytest.mark.alone
def test_requests_before_the_answer_to_the_last_one_close_the_connection(service: Attacked) -> None:
    def attack() -> None:
        for _ in range(30):
            service.connect(service.poll() * 1000)

    check_unhurt(service, attack)
    flood = service.connect(service.poll() * 1000)
    until(lambda: closed(flood))


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


def test_half_a_head_is_closed_when_its_time_is_over_however_slowly_it_goes_on(hasty: Attacked) -> None:
    began = time.monotonic()
    silent = [hasty.connect(raw) for raw in (b"", b"GET", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n") * 10]
    dripping = hasty.connect(b"GET /healthz HTTP/1.1\r\nX: ")
    while not closed(dripping):
        assert time.monotonic() - began < 60 * HEAD_SECONDS
        time.sleep(0.05)
        drip(dripping)
    assert time.monotonic() - began > HEAD_SECONDS / 2
    until(lambda: all(closed(one) for one in silent))


@pytest.mark.slow
def test_half_a_body_is_refused_when_its_time_is_over_and_cannot_go_on_for_ever(hasty: Attacked) -> None:
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
    while not closed(dripping):
        assert time.monotonic() - began < 60 * BODY_SECONDS
        drip(dripping)
        time.sleep(0.05)


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
    failed, before, left_out = service.counted(500), service.counted(499), service.left_out()
    for _ in range(20):
        service.connect(service.upload(1000) + b"{")
    time.sleep(0.5)  # so that the service has let in most of them
    service.hang_up()
    until(lambda: service.counted(499) - before + service.left_out() - left_out == 20)
    assert service.counted(500) == failed
    assert "Traceback" not in service.log_text()


def test_a_connection_too_many_closes_the_one_that_has_said_nothing_for_longest(tmp_path: Path) -> None:
    with attacked("shuffler", tmp_path, DISTRUST_MAX_CONNECTIONS="16") as service:
        silent = [service.connect() for _ in range(40)]
        assert httpx.get(f"{service.url}/healthz").is_success
        until(lambda: sum(closed(one) for one in silent) >= 24)
        assert not closed(silent[-1])
