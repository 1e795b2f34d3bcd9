"""Tests that TLS serves and calls those whom its files name, and that each fault is one line that names it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from distrust.common.errors import BadParameter, ProtocolError, Unavailable, exit_status
from distrust.common.protocol.web.client import Http, Patience
from distrust.common.protocol.web.settings import ServiceSettings
from distrust.common.protocol.web.tls import caller_context, service_context
from distrust.common.wire import Message
from distrust.lab.cli.party import health_command
from tests.support.certificates import HERE, YESTERDAY, Certificates, Pair, call_with

ONCE = Patience(total=0.0, answer=30.0)  # a call that would be made again ends with "(1 attempts)"
OK = b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\nConnection: close\r\n\r\n{"number":2}'
BAD = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


class Hello(Message):
    number: int


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("foreign"))


@pytest.fixture
def environment(ours: Certificates) -> Iterator[pytest.MonkeyPatch]:
    """Yield the environment, in which this process trusts our authority and has a certificate of it."""
    with pytest.MonkeyPatch.context() as patch:
        call_with(patch, ours.caller())
        yield patch
    caller_context.cache_clear()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer as a service does: a request, or 400 for what is none."""
    first = await reader.read(1)
    writer.write(OK if first == b"G" else BAD)
    await writer.drain()
    writer.close()


@asynccontextmanager
async def served(pair: Pair | None, client_ca: Path | None) -> AsyncIterator[str]:
    """Yield the address of a service, without its scheme."""
    tls = None if pair is None else service_context(pair.cert, pair.key, client_ca)
    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls) as server:
        yield f"localhost:{server.sockets[0].getsockname()[1]}"


CLIENT_CERT = "set DISTRUST_CLIENT_CERT and DISTRUST_CLIENT_KEY"
FAULTS = {
    "wrong-name": "the service's certificate is refused: Hostname mismatch, certificate is not valid for 'localhost'",
    "expired": "the service's certificate is refused: certificate has expired",
    "unknown-authority": "; DISTRUST_CA names the authority to trust",
    "no-client-certificate": f"the service wants a client certificate: {CLIENT_CERT}",
    "foreign-client": "the service refuses the client certificate of DISTRUST_CLIENT_CERT: unknown ca",
    "expired-client": "the service refuses the client certificate of DISTRUST_CLIENT_CERT: certificate expired",
    "plain-service": "no TLS is spoken there: does its address begin with http://?",
    "plain-call": "the service there speaks TLS: its address begins with https://",
}


def prepared(
    name: str, ours: Certificates, foreign: Certificates, environment: pytest.MonkeyPatch
) -> tuple[Pair | None, str]:
    """Return a service's certificate and the scheme of its address; let this process be the caller of the case."""
    pair: Pair | None = ours.issue("here", *HERE)
    trusting = {"DISTRUST_CA": str(ours.ca)}
    if name == "wrong-name":
        pair = ours.issue("elsewhere", "elsewhere.example")
    elif name == "expired":
        pair = ours.issue("old", *HERE, until=YESTERDAY)
    elif name == "unknown-authority":
        pair = foreign.issue("here", *HERE)
    elif name == "no-client-certificate":
        call_with(environment, trusting)
    elif name == "foreign-client":
        call_with(environment, foreign.caller() | trusting)
    elif name == "expired-client":
        old = ours.issue("late", "caller.example", until=YESTERDAY)
        own = {"DISTRUST_CLIENT_CERT": str(old.cert), "DISTRUST_CLIENT_KEY": str(old.key)}
        call_with(environment, trusting | own)
    elif name == "plain-service":
        pair = None
    return pair, "http" if name == "plain-call" else "https"


def get(http: Http, url: str) -> "asyncio.Future[Hello]":
    return asyncio.ensure_future(http.peer(url).get("/v1/x", Hello))


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_tls_ends_a_call_at_once_in_one_line_that_names_it(
    name: str, loop: str, ours: Certificates, foreign: Certificates, environment: pytest.MonkeyPatch
) -> None:
    """A fleet and the server call by `Http`, the health check by the standard library. Both say the same."""
    pair, scheme = prepared(name, ours, foreign, environment)

    async def call() -> None:
        async with served(pair, ours.ca) as place, Http(ONCE) as http:
            url = f"{scheme}://{place}"
            with pytest.raises(Unavailable) as caught:
                await get(http, url)
            with pytest.raises(Unavailable) as unhealthy:
                await asyncio.to_thread(health_command, url)
        told, checked = caught.value.detail, unhealthy.value.detail
        assert told.startswith(f"GET {url}/v1/x: TLS: ")
        assert told.endswith(FAULTS[name])
        assert checked == f"{url}: {told.partition('/v1/x: ')[2]}"
        assert "\n" not in told
        assert exit_status(caught.value) == 75

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(call())


@pytest.mark.parametrize("loop", LOOPS)
def test_known_callers_are_served_and_a_process_makes_one_context(
    loop: str, ours: Certificates, environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def call() -> None:
        async with served(ours.issue("here", *HERE), ours.ca) as place, Http(ONCE) as http, Http(ONCE) as other:
            for one in (http, other):
                assert await get(one, f"https://{place}") == Hello(number=2)
                assert await get(one, f"https://{place}".replace("localhost", "127.0.0.1")) == Hello(number=2)
            await asyncio.to_thread(health_command, f"https://{place}")

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(call())
    assert caller_context.cache_info().misses == 1
    assert "ready" in capsys.readouterr().out


def test_a_call_without_tls_makes_no_context(environment: pytest.MonkeyPatch) -> None:
    async def call() -> None:
        async with served(None, None) as place, Http(ONCE) as http:
            assert await get(http, f"http://{place}") == Hello(number=2)

    environment.setenv("DISTRUST_CA", "/nowhere")
    asyncio.run(call())
    assert caller_context.cache_info().misses == 0


def test_an_own_file_that_cannot_be_used_ends_a_call_before_it_leaves(environment: pytest.MonkeyPatch) -> None:
    async def call() -> None:
        async with Http(ONCE) as http:
            await get(http, "https://localhost:9")

    call_with(environment, {"DISTRUST_CA": "/nowhere"})
    with pytest.raises(BadParameter, match=r"^DISTRUST_CA = '/nowhere': No such file or directory$") as caught:
        asyncio.run(call())
    assert exit_status(caught.value) == 2


def test_half_of_a_callers_pair_is_refused(ours: Certificates, environment: pytest.MonkeyPatch) -> None:
    for half, other in (
        ("DISTRUST_CLIENT_CERT", "DISTRUST_CLIENT_KEY"),
        ("DISTRUST_CLIENT_KEY", "DISTRUST_CLIENT_CERT"),
    ):
        call_with(environment, {half: ours.caller()[half]})
        with pytest.raises(BadParameter, match=f"^{half} = '.*': needs {other} beside it$"):
            caller_context()


def bad_settings(ours: Certificates, foreign: Certificates, folder: Path) -> dict[str, tuple[dict[str, Path], str]]:
    """Return settings that are refused, and the beginning of the line."""
    pair, other = ours.issue("mine", *HERE), foreign.issue("mine", *HERE)
    whole = {"tls_cert": pair.cert, "tls_key": pair.key}
    text, none, shared, locked = folder / "text", folder / "none", folder / "shared.key", folder / "locked.key"
    text.write_text("no PEM")
    text.chmod(0o600)
    shared.write_bytes(pair.key.read_bytes())
    shared.chmod(0o640)
    (broken := folder / "broken.key").write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    broken.chmod(0o600)
    key = load_pem_private_key(pair.key.read_bytes(), None)
    password = BestAvailableEncryption(b"secret")
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, password))
    locked.chmod(0o600)
    return {
        "certificate-alone": ({"tls_cert": pair.cert}, f"tls_cert = '{pair.cert}': needs DISTRUST_TLS_KEY"),
        "key-alone": ({"tls_key": pair.key}, f"tls_key = '{pair.key}': needs DISTRUST_TLS_CERT"),
        "client-ca-alone": ({"client_ca": ours.ca}, f"client_ca = '{ours.ca}': needs DISTRUST_TLS_CERT and"),
        "no-certificate": (whole | {"tls_cert": none}, f"tls_cert = '{none}': No such file"),
        "no-key": (whole | {"tls_key": none}, f"tls_key = '{none}': No such file"),
        "no-client-ca": (whole | {"client_ca": none}, f"client_ca = '{none}': No such file"),
        "folder": (whole | {"tls_cert": folder}, f"tls_cert = '{folder}': Is a directory"),
        "text-as-certificate": (whole | {"tls_cert": text}, f"tls_cert = '{text}': must be a PEM file with cert"),
        "key-as-certificate": (whole | {"tls_cert": pair.key}, f"tls_cert = '{pair.key}': must be a PEM file with c"),
        "text-as-key": (whole | {"tls_key": text}, f"tls_key = '{text}': must be a PEM file with a private key"),
        "broken-key": (whole | {"tls_key": broken}, f"tls_key = '{broken}': must be a private key in PEM"),
        "text-as-client-ca": (whole | {"client_ca": text}, f"client_ca = '{text}': must be a PEM file with cert"),
        "foreign-key": (
            whole | {"tls_key": other.key},
            f"tls_key = '{other.key}': does not fit the certificate of DIS",
        ),
        "shared-key": (whole | {"tls_key": shared}, f"tls_key = '{shared}': has mode 640: must be readable by its ow"),
        "locked-key": (whole | {"tls_key": locked}, f"tls_key = '{locked}': must be a key without a password"),
    }


def test_files_that_a_service_cannot_use_are_refused_in_one_line_that_names_the_setting(
    tmp_path: Path, ours: Certificates, foreign: Certificates
) -> None:
    for name, (given, line) in bad_settings(ours, foreign, tmp_path).items():
        with pytest.raises(ProtocolError) as caught:
            ServiceSettings(**given).check()
        assert caught.value.detail.startswith(line), name
        assert "\n" not in caught.value.detail


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_beyond_loopback_a_service_has_a_token_and_a_proxy_or_known_callers(
    host: str, tmp_path: Path, ours: Certificates
) -> None:
    (tmp_path / "token").write_text("sesame")
    pair = ours.issue("mine", *HERE)
    token, tls = {"operator_token_file": tmp_path / "token"}, {"tls_cert": pair.cert, "tls_key": pair.key}
    known = {**tls, "client_ca": ours.ca}
    for fine in ({"behind_proxy": True}, known):
        ServiceSettings(host=host, **token, **fine).check()
        with pytest.raises(BadParameter, match="must be loopback unless DISTRUST_OPERATOR_TOKEN_FILE is set"):
            ServiceSettings(host=host, **fine).check()
    for bare in ({}, tls):
        with pytest.raises(BadParameter, match=r"unless DISTRUST_BEHIND_PROXY=1, or DISTRUST_TLS_CERT, .* are set"):
            ServiceSettings(host=host, **token, **bare).check()
    with pytest.raises(BadParameter, match="must be unset with DISTRUST_BEHIND_PROXY"):
        ServiceSettings(host=host, **token, **known, behind_proxy=True).check()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_behind_a_proxy_a_service_on_loopback_has_a_token_too(host: str, tmp_path: Path) -> None:
    """A caller of the network who names localhost in `Host` would be its operator."""
    with pytest.raises(BadParameter, match="must be unset unless DISTRUST_OPERATOR_TOKEN_FILE is set"):
        ServiceSettings(host=host, behind_proxy=True).check()
    (tmp_path / "token").write_text("sesame")
    ServiceSettings(host=host, behind_proxy=True, operator_token_file=tmp_path / "token").check()


def test_an_empty_variable_is_an_unset_file() -> None:
    """Templates of containers leave variables empty."""
    assert ServiceSettings(tls_cert="", tls_key="", client_ca="").tls() is None
