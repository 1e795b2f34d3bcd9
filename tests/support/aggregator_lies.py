"""Lies of an aggregator to the clients of a fleet, and a run of two fleets under such lies."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from distrust.client.cohort.randomizer import World
from distrust.client.cohort.secagg import Secrets
from distrust.client.environments import build_environment, read_spec
from distrust.client.fleet.fleet import Fleet, FleetOptions
from distrust.common.protocol.crypto.context import masking
from distrust.common.protocol.crypto.graph import KEYS_SIZE, Roster, bitmap_to_members, members_to_bitmap
from distrust.common.protocol.intermediary.deadlines import Clock
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.listing import RunView
from distrust.common.wire import decode_blob, encode_blob
from tests.support.limits import lenient
from tests.support.mask_algebra import Story, groups
from tests.support.recording import (
    PARTIES,
    SEED,
    TOKEN,
    Exchange,
    RecordingTransport,
    Tamper,
    fleet_over,
    services,
)

WORLD = World(build_environment(read_spec({"name": "gaussian-easy", "arms": 2, "seed": SEED})), SEED)
N = 32
Lie = Callable[[dict[str, Any], set[int]], None]
"""Changes the JSON of a stage view; the set holds the slots of the fleet that is lied to."""


def config(clients: int = N, dropout: float = 0.1, seconds: float = 5.0, corrupt: float = 0.0) -> RunConfig:
    return RunConfig.model_validate(
        {
            "run": "run",
            "arms": 2,
            "horizon": 2 * clients,
            "policy": {"first_batch": clients.bit_length() - 1},
            "mechanism": {"name": "distributed-polya", "epsilon": 1.0},
            "intermediary": {"dropout": dropout, "corrupt": corrupt, "minimum": 20, "stage_seconds": seconds},
        }
    )


def _bytes(view: dict[str, Any], name: str) -> bytes:
    raw = decode_blob(view[name])
    assert isinstance(raw, bytes)
    return raw


def _clients(view: dict[str, Any]) -> int:
    return 8 * len(_bytes(view, "members"))  # cohorts of these tests are multiples of 8


def _members(view: dict[str, Any]) -> tuple[int, ...]:
    return bitmap_to_members(_bytes(view, "members"), _clients(view))


def foreign_keys(view: dict[str, Any], own: set[int]) -> None:
    """Replace the keys of all other clients by keys of the aggregator's own, with which it could read every box."""
    members, keys = _members(view), bytearray(_bytes(view, "roster"))
    for i, slot in enumerate(members):
        if slot not in own:
            keys[KEYS_SIZE * i : KEYS_SIZE * (i + 1)] = Secrets().public
    view["roster"] = encode_blob(bytes(keys))


def another_roster(view: dict[str, Any], own: set[int]) -> None:
    """Leave one member out of the roster: the clients that are lied to compute another graph than the others."""
    members, keys = _members(view), _bytes(view, "roster")
    gone = next(i for i, slot in enumerate(members) if slot not in own)
    view["members"] = encode_blob(members_to_bitmap([*members[:gone], *members[gone + 1 :]], _clients(view)))
    view["roster"] = encode_blob(keys[: KEYS_SIZE * gone] + keys[KEYS_SIZE * (gone + 1) :])


def another_set(view: dict[str, Any], own: set[int]) -> None:
    """Leave one client out of the members, or of the survivors."""
    members = _members(view)
    gone = next(slot for slot in members if slot not in own)
    view["members"] = encode_blob(members_to_bitmap([slot for slot in members if slot != gone], _clients(view)))


def without_itself(view: dict[str, Any], own: set[int]) -> None:
    """Call the clients that are lied to lost."""
    kept = [slot for slot in _members(view) if slot not in own]
    view["members"] = encode_blob(members_to_bitmap(kept, _clients(view)))


def another_challenge(view: dict[str, Any], own: set[int]) -> None:
    """Send another challenge. Answers to two challenges reveal the seed under a blinded polynomial."""
    del own
    view["challenge"] = encode_blob(bytes(32))


@dataclass
class Played:
    """The end of an attack, and the requests and answers of its clients.

    reasons  why clients refused, by fleet.
    sent     the stages at which each fleet sent anything.
    """

    view: RunView
    reasons: dict[str, list[str]]
    sent: dict[str, set[str]]
    exchanges: list[Exchange]

    def cohorts(self) -> dict[str, Cohort]:
        """Return by name the cohorts that clients asked the aggregator for."""
        result = [exchange.answer for exchange in self.exchanges if exchange.url.path.endswith("/terms")]
        return {one.cohort: one for one in map(Cohort.model_validate_json, result)}

    def answers(self, fleet: str, cohort: str) -> dict[str, dict[str, Any]]:
        """Return by stage the view that a fleet got of a cohort as the stage opened."""
        own = [one for one in self.exchanges if one.caller == fleet and one.url.path.endswith(f"/{cohort}/stage")]
        views = [json.loads(one.answer) for one in own]
        return {view["stage"]: view for view in views if "stage" in view}

    def posted(self, fleet: str, cohort: str, stage: str) -> set[int]:
        """Return the slots of a fleet that sent a message of this stage."""
        own = [exchange for exchange in self.exchanges if (exchange.caller, exchange.method) == (fleet, "POST")]
        posts = [one.body for one in own if one.url.path.endswith(f"/{cohort}/{stage}")]
        return {item["slot"] for body in posts for item in json.loads(body)["items"]}

    def determined(self, cohort: Cohort, colluders: frozenset[int] = frozenset()) -> set[frozenset[int]]:
        """Return the sets of clients whose sums the messages of a cohort determine, by `tests.support.mask_algebra`."""
        stories = {}
        for fleet in self.sent:
            answers, answered = self.answers(fleet, cohort.cohort), self.posted(fleet, cohort.cohort, "unmask")
            for slot in self.posted(fleet, cohort.cohort, "masked"):
                survivors = frozenset(_members(answers["unmask"])) if slot in answered else None
                stories[slot] = Story(frozenset(_members(answers["masked"])), survivors)
        if not stories:
            return set()
        first = self.answers("honest", cohort.cohort)["shares"]
        roster = Roster(cohort, _bytes(first, "members"), _bytes(first, "roster"))
        graph = [roster.neighbours(slot) if slot in roster else () for slot in range(cohort.clients)]
        return groups(graph, stories, masking(cohort).threshold, colluders)

    def opened(self) -> dict[str, set[frozenset[int]]]:
        """Return by cohort the sets of clients whose sums are determined; cohorts without such a set are left out."""
        result = {name: self.determined(cohort) for name, cohort in self.cohorts().items()}
        return {name: sums for name, sums in result.items() if sums}


def liar(stage: str, lie: Lie, exchanges: list[Exchange], caller: str) -> Tamper:
    """Return a tamper that applies a lie to the views of one stage that a fleet gets."""

    def tamper(url: httpx.URL, raw: bytes) -> bytes:
        if url.host != "aggregator" or not url.path.endswith("/stage"):
            return raw
        view = json.loads(raw)
        if view.get("stage") == stage:
            lie(view, own_slots(exchanges, caller, view["cohort"]))
        return json.dumps(view).encode()

    return tamper


def own_slots(exchanges: list[Exchange], caller: str, cohort: str) -> set[int]:
    own = [exchange for exchange in exchanges if (exchange.caller, exchange.method) == (caller, "POST")]
    posts = [one for one in own if one.url.path.endswith(f"/{cohort}/keys")]
    return {item["slot"] for post in posts for item in json.loads(post.body)["items"]}


class InTurn(RecordingTransport):
    """A fleet's transport, which asks for tickets only while the fleet has no more of them than the other fleet.

    So each fleet holds about half of every cohort, however fast it is. It waits at most a second for the other fleet,
    which may want no more tickets.
    """

    granted: dict[str, int]  # by fleet

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/tickets"):
            return await super().handle_async_request(request)
        for _ in range(100):
            if self.granted[self._caller] <= min(self.granted.values()):
                break
            await asyncio.sleep(0.01)
        answer = await super().handle_async_request(request)
        if answer.is_success:
            grants = json.loads(self._exchanges[-1].answer)["grants"]
            self.granted[self._caller] += sum(grant["count"] for grant in grants)
        return answer


def attack(
    folder: Path,
    run: RunConfig,
    tampers: dict[str, Callable[[list[Exchange], str], Tamper]],
    clock: Callable[[list[Exchange]], Clock | None] = lambda _: None,
) -> Played:
    """Let two fleets play, and return how they ended.

    tampers  the lies by fleet, "lied" and "honest".
    clock    makes the intermediaries' clock.
    """
    databases = {name: folder / f"{name}.sqlite3" for name in PARTIES}

    async def whole() -> Played:
        exchanges: list[Exchange] = []
        async with services(databases, exchanges, clock(exchanges)) as (apps, operator):
            server = operator.peer("http://server", TOKEN)
            await server.post("/v1/runs", run, RunView)
            fleets: dict[str, Fleet] = {}
            granted = dict.fromkeys(("lied", "honest"), 0)
            for name in granted:
                tamper = {"tamper": tampers[name](exchanges, name)} if name in tampers else {}
                wire = InTurn(name, apps, exchanges, **tamper)
                wire.granted = granted
                fleets[name] = fleet_over(WORLD, lenient(), FleetOptions(block=4), run, wire)
            serving = asyncio.gather(*(fleet.serve() for fleet in fleets.values()), return_exceptions=True)
            ends = await asyncio.wait_for(serving, 300)
            view = await server.get(f"/v1/runs/{run.run}", RunView)
            reasons = {name: list(one.stats.reasons) for name, one in fleets.items()}
            for name, end in zip(fleets, ends, strict=True):
                reasons[name] += [repr(end)] if isinstance(end, BaseException) else []
            return Played(view, reasons, {name: _stages(exchanges, name) for name in fleets}, exchanges)

    return asyncio.run(whole())


def _stages(exchanges: list[Exchange], caller: str) -> set[str]:
    posts = [one for one in exchanges if (one.caller, one.callee, one.method) == (caller, "aggregator", "POST")]
    return {post.url.path.rpartition("/")[2] for post in posts} - {"departures", "stage"}
