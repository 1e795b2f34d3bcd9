"""Tests of the promises that every service keeps around its own routes: problems, tokens, limits, health."""

import asyncio
import gc
import json
import threading
import types
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated

import pytest
from fastapi import APIRouter, Response
from pydantic import Field, field_serializer
from sqlalchemy import MetaData

from distrust.common.errors import Conflict, TooSmall, Unauthorized, Unavailable
from distrust.common.protocol.storage.database import Database
from distrust.common.protocol.web.app import OperatorOnly, Readers, Readiness, make_app
from distrust.common.protocol.web.bodies import JsonBody, MessageRoute
from distrust.common.protocol.web.problems import MEDIA_TYPE, problems
from distrust.common.protocol.web.settings import ServiceSettings
from distrust.common.wire import Blob, Message
from tests.support.asgi import AsgiClient
from tests.support.attacks import until


class Inner(Message):
    number: Annotated[int, Field(ge=0)]
    body: Blob


class Outer(Message):
    items: list[Inner]


router = APIRouter(route_class=MessageRoute)


@router.post("/outer", responses=problems(Conflict, TooSmall))
def outer(message: Annotated[Outer, JsonBody.of(Outer)]) -> Inner:
    return message.items[0]


@router.post("/refused", responses=problems(Conflict))
def refused(message: Annotated[Outer, JsonBody.of(Outer)]) -> Inner:
    raise Conflict(f"not these {len(message.items)}")


@router.get("/fails/{how}")
def fails(how: str) -> str:
    raise {"small": TooSmall(3, 5), "down": Unavailable("not now"), "bug": RuntimeError("secret")}[how]


@router.get("/number/{number}")
def number(number: int) -> int:
    return number


@router.put("/guarded", dependencies=[OperatorOnly], responses=problems(Unauthorized))
def guarded() -> str:
    return "in"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[AsgiClient]:
    (tmp_path / "token").write_text("sesame\n")
    settings = ServiceSettings(max_body=2048, operator_token_file=tmp_path / "token")
    app = make_app("probe", None, [router], settings)
    app.state.database = Database(f"sqlite:///{tmp_path}/x.sqlite3", MetaData(), "0001")
    with AsgiClient(app) as client:
        yield client
    app.state.database.close()


def test_a_message_goes_through_as_packed_json(client: AsgiClient) -> None:
    answer = client.post("/outer", json={"items": [{"number": 7, "body": "AAE"}]})
    assert (answer.status_code, answer.json()) == (200, {"number": 7, "body": "AAE"})


def test_an_error_of_ours_is_its_problem_document(client: AsgiClient) -> None:
    answer = client.get("/fails/small")
    assert answer.headers["content-type"] == MEDIA_TYPE
    assert answer.json() == {
        "type": "urn:distrust:problem:too-small",
        "title": "too small",
        "status": 409,
        "detail": "3 survivors, at least 5 needed: nothing is released",
        "got": 3,
        "need": 5,
    }


def test_every_answer_forbids_a_browser_to_guess_its_type(client: AsgiClient) -> None:
    paths = ["/", "/healthz", "/metrics", "/openapi.json", "/none", "/number/1", "/fails/down", "/fails/bug"]
    for path in paths:
        assert client.get(path).headers["x-content-type-options"] == "nosniff", path
    refused = client.post("/outer", content=b"x", headers={"content-type": "text/plain"})
    assert (refused.status_code, refused.headers["x-content-type-options"]) == (415, "nosniff")


def test_unavailable_says_when_to_come_back(client: AsgiClient) -> None:
    answer = client.get("/fails/down")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def test_a_bug_tells_the_caller_nothing(client: AsgiClient) -> None:
    answer = client.get("/fails/bug")
    assert answer.status_code == 500
    assert "secret" not in answer.text


def test_every_bad_field_gets_its_line_and_no_secret_is_echoed(client: AsgiClient) -> None:
    body = {"items": [{"number": -1, "body": "!secret!"}], "more": "x" * 500}
    answer = client.post("/outer", json=body)
    assert answer.status_code == 422
    lines = answer.json()["detail"].splitlines()
    assert lines[0] == "items.0.number = -1: must be at least 0"
    assert lines[1].startswith("items.0.body = (str): ")
    assert lines[2].startswith("more = 'xxx")
    assert len(lines[2]) < 130
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("PATCH", "/outer", 405), ("GET", "/number/one", 422)],
)
def test_what_the_framework_refuses_is_a_problem_too(client: AsgiClient, method: str, path: str, status: int) -> None:
    answer = client.request(method, path)
    assert answer.status_code == answer.json()["status"] == status
    assert answer.headers["content-type"] == MEDIA_TYPE


async def chunks() -> AsyncIterator[bytes]:
    for _ in range(64):
        yield b" " * 64


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        pytest.param(b"a=1", "x-www-form-urlencoded", 415, id="another-type"),
        pytest.param(b" " * 4096, "json", 413, id="too-large-by-its-length"),
        pytest.param(chunks(), "json", 413, id="too-large-in-chunks"),
    ],
)
def test_a_body_of_another_type_or_too_large_is_refused(
    client: AsgiClient, content: bytes | AsyncIterator[bytes], kind: str, status: int
) -> None:
    answer = client.post("/outer", content=content, headers={"Content-Type": f"application/{kind}"})
    assert answer.status_code == answer.json()["status"] == status


@pytest.mark.parametrize("items", [[], ["x" * 2**17], "x" * 2**17])
def test_a_refusal_keeps_no_frame_that_could_hold_the_body(items: object) -> None:
    def frames() -> int:
        return sum(isinstance(one, types.TracebackType) for one in gc.get_objects())

    gc.disable()  # a body must not wait for the garbage collector
    try:
        with AsgiClient(make_app("probe", None, [router], ServiceSettings())) as client:
            before = frames()
            statuses = {client.post("/refused", json={"items": items}).status_code for _ in range(4)}
            assert statuses == {409 if items == [] else 422}
            until(lambda: frames() == before)  # a thread of the pool forgets its work a little later
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "given", [None, "Bearer open", "Bearer sesames", "Bearer sesam", "sesame", "Basic sesame", "Bearer "]
)
def test_a_guarded_route_needs_the_token(client: AsgiClient, given: str | None) -> None:
    answer = client.put("/guarded", headers={"Authorization": given} if given else {})
    assert (answer.status_code, answer.json()["type"]) == (401, "urn:distrust:problem:unauthorized")
    assert client.put("/guarded", headers={"Authorization": "Bearer sesame"}).status_code == 200


def test_the_root_says_what_this_is_and_names_paths_that_answer(client: AsgiClient) -> None:
    answer = client.get("/")
    assert (answer.status_code, answer.text.splitlines()[0]) == (200, "probe")
    paths = [word for word in answer.text.split() if word.startswith("/")]
    assert len(paths) == 4
    assert all(client.get(path).status_code == 200 for path in paths)


def test_health_readiness_and_metrics_answer(client: AsgiClient) -> None:
    client.get("/number/3")
    assert [client.get(path).status_code for path in ("/healthz", "/readyz")] == [200, 200]
    text = client.get("/metrics").text
    assert 'distrust_requests_total{method="GET",route="/number/{number}",status="200"} 1.0' in text


def test_a_service_whose_database_writes_again_is_ready_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distrust.common.protocol.web.app.READY_SECONDS", 0.0)
    full, readiness = [True], Readiness(0)

    class Disk:
        def check_writable(self, min_free: int) -> None:
            if full[0]:
                raise Unavailable(f"{min_free} bytes are left")

    with pytest.raises(Unavailable, match="0 bytes are left"):
        readiness.check(Disk())
    full[0] = False
    readiness.check(Disk())


def test_the_openapi_document_keeps_the_bodies_and_needs_no_network(client: AsgiClient) -> None:
    document = client.get("/openapi.json").json()
    operation = document["paths"]["/outer"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["items"]["items"] == {"$ref": "#/components/schemas/Inner"}
    assert {"Inner", "Problem"} <= document["components"]["schemas"].keys()
    assert operation["responses"]["409"]["description"] == "conflict, too-small"
    assert "cdn" not in json.dumps(document)
    assert client.get("/docs").status_code == 404


class Written(Message):
    """Notes the threads that write it."""

    made_by: int

    @field_serializer("made_by")
    def _by(self, made_by: int) -> list[int]:
        return [made_by, threading.get_ident()]


def test_a_plain_endpoints_message_is_written_in_the_thread_that_made_it() -> None:
    routes = APIRouter(route_class=MessageRoute)

    @routes.get("/written")
    def written() -> Written:
        return Written(made_by=threading.get_ident())

    @routes.get("/created")
    def created(response: Response) -> Written:
        response.status_code = 201
        return Written(made_by=0)

    with AsgiClient(make_app("party", None, [routes], ServiceSettings())) as client:
        answer = client.get("/written")
        made, wrote = answer.json()["made_by"]
        assert made == wrote != threading.get_ident()
        assert answer.headers["content-type"] == "application/json"
        assert client.get("/created").status_code == 201
        document = client.get("/openapi.json").json()
    schema = document["paths"]["/written"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/Written"}


def test_few_readers_have_a_turn_at_once_few_wait_and_all_others_are_refused() -> None:
    async def read() -> tuple[list[int], int, int]:
        readers, inside, most = Readers(2, waiting=3), list[int](), 0
        order: list[int] = []

        async def one(number: int) -> None:
            nonlocal most
            async with readers.turn():
                inside.append(number)
                most = max(most, len(inside))
                order.append(number)
                await asyncio.sleep(0)
                inside.remove(number)

        done = await asyncio.gather(*map(one, range(9)), return_exceptions=True)
        refused = sum(isinstance(answer, Unavailable) for answer in done)
        await asyncio.gather(*map(one, range(9, 14)))  # places are free again
        return order, most, refused

    assert asyncio.run(read()) == ([0, 1, 2, 3, 4, 9, 10, 11, 12, 13], 2, 4)


def test_a_reader_whose_answer_fails_or_who_hangs_up_leaves_its_turn_to_others() -> None:
    async def read() -> None:
        readers = Readers(1, waiting=0)
        for _ in range(3):
            with pytest.raises(ValueError, match="no answer"):
                async with readers.turn():
                    raise ValueError("no answer")
        for _ in range(3):
            holder = asyncio.create_task(_hold(readers))
            await asyncio.sleep(0)
            holder.cancel()
            with pytest.raises(asyncio.CancelledError):
                await holder
        async with asyncio.timeout(60), readers.turn():
            pass

    asyncio.run(read())


async def _hold(readers: Readers) -> None:
    async with readers.turn():
        await asyncio.Event().wait()
