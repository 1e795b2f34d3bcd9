"""Calls to a real app through httpx without a socket: by a client of one event loop, and by our own `Http`."""

import asyncio
import html
import re
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import httpx
from fastapi import FastAPI

from distrust.common.protocol.web.sending import Arrival, NoAnswer, Request, header_bytes


class AsgiClient:
    """`with AsgiClient(app) as client: client.get("/healthz")`. Errors of the app are answers, as over a socket."""

    def __init__(self, app: FastAPI, headers: dict[str, str] | None = None) -> None:
        self.app = app
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://party.localhost", headers=headers)
        self._runner = asyncio.Runner()

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._runner.run(self._client.request(method, path, **options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)

    def put(self, path: str, **options: Any) -> httpx.Response:
        return self.request("PUT", path, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()


def words(page: str) -> str:
    """Return what a reader sees of a page, in one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


class OverHttpx:
    """Lets `Http` send by a transport of httpx, which may be an app, or a function that answers."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self._transport = transport

    async def send(self, call: Request) -> Arrival:
        request = httpx.Request(call.method, call.url, headers=call.headers, content=call.body)
        try:
            return _Arrived(await self._transport.handle_async_request(request), request)
        except httpx.TransportError as error:
            raise NoAnswer(f"{type(error).__name__} {error}") from error

    async def aclose(self) -> None:
        await self._transport.aclose()


class _Arrived:
    def __init__(self, answer: httpx.Response, request: httpx.Request) -> None:
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        self._answer, self._parts = answer, aiter(answer.stream)
        self.status = answer.status_code
        self.headers: Sequence[tuple[bytes, bytes]] = answer.headers.raw
        self.sent = header_bytes(request.headers.raw)

    async def read(self) -> bytes:
        return await anext(self._parts, b"")

    async def aclose(self) -> None:
        await self._answer.aclose()
