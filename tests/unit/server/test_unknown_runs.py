"""Tests that requests for unknown runs leave no state in the server."""

import asyncio
import secrets
from pathlib import Path

import httpx

from distrust.server.app import server_app
from distrust.server.settings import ServerSettings
from tests.support.in_memory_intermediaries import InMemoryIntermediaries


def test_requests_for_unknown_runs_leave_no_state(tmp_path: Path) -> None:
    async def whole() -> None:
        app = server_app(ServerSettings(database=f"sqlite:///{tmp_path}/server.sqlite3"), InMemoryIntermediaries())
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://server.localhost/v1/runs") as client,
        ):
            for number in range(20):
                wish = {"request": secrets.token_hex(16), "round": 1, "want": 50}
                answers = [
                    await client.post(f"/unknown-{number}/tickets", json=wish),
                    await client.get(f"/unknown-{number}/round", params={"wait": 5}),
                    await client.get(f"/unknown-{number}/events"),
                ]
                assert [answer.status_code for answer in answers] == [404] * 3
            assert app.state.coordinator._ticket_locks == {}
            assert app.state.notifier._watches == app.state.notifier._waits == {}

    asyncio.run(whole())
