"""Tests that a caller's files are read within bounds, and that addresses are shown without their passwords."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

import distrust
from distrust.client.environments.auto_lending import read_customers
from distrust.client.environments.contextual_mslr import read_contexts
from distrust.client.environments.letor import load_compressed
from distrust.client.environments.mslr import read_counts
from distrust.client.fleet.settings import FleetSettings
from distrust.common.errors import BadMessage, BadParameter, ProtocolError, Unavailable
from distrust.common.explain import explain_all
from distrust.common.inputs import Watched, read_file, without_passwords
from distrust.common.protocol.run.listing import RunList
from distrust.common.protocol.web.client import Http, Patience
from distrust.lab.__main__ import app
from distrust.lab.stack.stack import Urls
from distrust.lab.sweep.cells import load_experiment
from distrust.lab.sweep.table import read_rows
from distrust.server.storage.keys import read_keys
from tests.support.asgi import OverHttpx

READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "run file": ("run.toml", distrust.read),
    "environment of a fleet": ("world.toml", lambda path: FleetSettings(environment=str(path)).world()),
    "experiment": ("sweep.toml", load_experiment),
    "rows as CSV": ("rows.csv", read_rows),
    "rows as Parquet": ("rows.parquet", read_rows),
    "counts": ("counts.csv", read_counts),
    "contexts": ("contexts.csv", read_contexts),
    "customers": ("customers.csv", read_customers),
    "LETOR": ("rows.txt", lambda path: load_compressed([path])),
    "keys": ("server.keys", read_keys),
}
"""By what a command reads: a name for the file, and its reader."""


def _long(path: Path) -> None:
    """Make a file of 2⁴⁰ bytes that takes no room on the disk."""
    path.touch()
    os.truncate(path, 2**40)


@pytest.mark.parametrize("reader", READERS)
def test_no_file_that_a_command_reads_keeps_it_waiting_or_fills_the_memory(reader: str, tmp_path: Path) -> None:
    """A pipe without a writer is never read to its end, a device such as /dev/zero has none."""
    name, read = READERS[reader]
    for made, why in (
        (lambda path: path.symlink_to("/dev/null"), "must be a file, and is a pipe or a device"),
        (os.mkfifo, "must be a file, and is a pipe or a device"),
        (_long, "has more than [0-9,]+ bytes"),
        (Path.mkdir, "Is a directory"),
    ):
        path = tmp_path / name
        made(path)
        if reader != "LETOR" or not path.is_file():  # read in blocks, and long
            with pytest.raises(ProtocolError, match=why):
                read(path)
        path.rmdir() if path.is_dir() else path.unlink()


def test_a_file_whose_size_is_not_known_before_is_read_whole_and_within_the_bound() -> None:
    path = Path("/proc/self/environ")
    raw, facts = read_file(path, 2**20)
    assert facts.st_size == 0 < len(raw)
    assert raw == path.read_bytes()
    with pytest.raises(OSError, match="has more than 10 bytes"):
        read_file(path, 10)


def test_a_name_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(ProtocolError, match="must be the name of a file"):
        distrust.read("a\0.toml")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:s3cret@h/db", "postgresql://me:***@h/db"),
        ("postgresql://me@corp:s3cret@h/db", "postgresql://me@corp:***@h/db"),
        ("postgresql://me:12/s3@c:r@h/db", "postgresql://me:***@h/db"),
        ("postgresql://h/db?user=me&sslpassword=s3cret&x=1", "postgresql://h/db?user=me&sslpassword=***&x=1"),
        ("postgresql://h/db?pass%77ord=s3cret", "postgresql://h/db?pass%77ord=***"),
        ("postgresql://h/db?%50ASSWORD=s3 cret&x=1", "postgresql://h/db?%50ASSWORD=***&x=1"),
        ("http://me:s3cret@h:8701/v1", "http://me:***@h:8701/v1"),
        ("http://h:8701/v1/runs/a@b", "http://h:8701/v1/runs/a@b"),
        ("sqlite:////srv/server.sqlite3", "sqlite:////srv/server.sqlite3"),
    ],
)
def test_an_address_is_shown_without_its_password(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


def test_a_password_that_is_cut_with_its_value_is_not_shown() -> None:
    entry = {"type": "float_parsing", "loc": ("database",), "input": f"postgresql://me:{'s3' * 5000}@h/db"}
    assert explain_all([entry]) == ["database = 'postgresql://me:***@': must be a number"]


def test_a_refused_call_names_the_address_without_its_password() -> None:
    async def call(answer: httpx.Response | Exception) -> None:
        def handle(_: httpx.Request) -> httpx.Response:
            if isinstance(answer, Exception):
                raise answer
            return answer

        async with Http(Patience(total=0.0), sender=OverHttpx(httpx.MockTransport(handle))) as http:
            peer = http.peer("http://me:s3cret@h:8701", "token")
            assert repr(peer) == "Peer('http://me:***@h:8701')"
            await peer.get("/v1/runs", RunList)

    with pytest.raises(Unavailable, match=r"http://me:\*\*\*@h:8701/v1/runs: ConnectError http://me:\*\*\*@h") as away:
        asyncio.run(call(httpx.ConnectError("http://me:s3cret@h")))
    with pytest.raises(BadMessage, match=r"^http://me:\*\*\*@h:8701 answered") as unreadable:
        asyncio.run(call(httpx.Response(200, content=b"{}")))
    assert "s3cret" not in f"{away.value}{unreadable.value}"


def test_commands_and_the_library_refuse_an_address_without_showing_its_password() -> None:
    for bad in ("ftp://me:s3cret@h", "http://me:s3cret@h:port"):
        with pytest.raises(BadParameter, match=r"^url = '[a-z]+://me:\*\*\*@h") as refused:
            app(["health", bad], standalone_mode=False)
        assert "s3cret" not in str(refused.value)
        with pytest.raises(BadParameter, match=r"^server = '[a-z]+://me:\*\*\*@h"):
            distrust.connect(bad)
    with pytest.raises(Unavailable, match=r"^http://me:\*\*\*@127\.0\.0\.1:9"):
        app(["health", "http://me:s3cret@127.0.0.1:9"], standalone_mode=False)
    urls = Urls("http://me:s3cret@h", "", "", "token")
    assert repr(urls) == "Urls(server='http://me:***@h', shuffler='', aggregator='')"


def test_a_text_that_is_no_address_is_shown_as_it_was_given() -> None:
    with pytest.raises(BadParameter, match=r"^server = 'ftp://x': must be an address"):
        distrust.connect("ftp://x")


def test_a_damaged_file_is_read_once_until_it_changes(tmp_path: Path) -> None:
    file, reads = tmp_path / "list", list[str]()
    file.write_text("good")

    def read() -> str:
        reads.append(file.read_text())
        if reads[-1] != "good":
            raise BadParameter("list", str(file), "must be good")
        return reads[-1]

    watched = Watched(file, read, "the list")
    file.write_text("damaged")
    for _ in range(3):
        with pytest.raises(Unavailable, match="the list cannot be read"):
            watched.value()
    assert reads == ["good", "damaged"]
    file.write_text("good")
    assert [watched.value() for _ in range(3)] == ["good"] * 3
    assert reads == ["good", "damaged", "good"]


def test_a_fault_of_the_system_is_looked_at_again_though_the_file_has_not_changed(tmp_path: Path) -> None:
    file, faults = tmp_path / "list", [OSError("too many open files")]
    file.write_text("good")

    def read() -> str:
        if file.read_text() == "better" and faults:
            raise BadParameter("list", str(file), "cannot be read") from faults.pop()
        return file.read_text()

    watched = Watched(file, read, "the list")
    file.write_text("better")
    with pytest.raises(Unavailable):
        watched.value()
    assert watched.value() == "better"
