"""Tests that no number in another party's message ends a fleet or a service with anything but a refusal.

A message is parsed by checks that compute with its values, and a client computes its guarantee from them.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter
from pydantic import ValidationError, model_validator

from distrust.common.dp.mechanisms import MECHANISMS
from distrust.common.errors import BadMessage, ProtocolError
from distrust.common.protocol.run.round import Round, RoundView
from distrust.common.protocol.web.app import make_app
from distrust.common.protocol.web.bodies import JsonBody, MessageRoute
from distrust.common.protocol.web.client import Http, Patience
from distrust.common.protocol.web.settings import ServiceSettings
from distrust.common.wire import Message, read_message
from tests.support.asgi import AsgiClient, OverHttpx
from tests.support.fleet_harness import RUN_ID, config_of
from tests.support.limits import lenient

MakeRound = Callable[..., Round]
Place = tuple[str | int, ...]

ODD = [0, -0.0, 1, -1, 2, 3, 0.5, 1.5, 5e-324, -5e-324, 1e-308, 1e-17, 1e16, 1e308, -1e308]
ODD += [2**53, 2**62, 2**63 - 1, 2**63, -(2**70), 10**30, 10**400]

MECHANISM = {"delta": 1e-3, "batches": 20}
"""Words of a spec, for mechanisms that take them."""


def numbers(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the place of every number in JSON values."""
    if isinstance(value, dict | list):
        for key, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(below, (*place, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place


def put(value: Any, place: Place, number: float) -> Any:
    """Return JSON values with this number at this place."""
    if not place:
        return number
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[place[0]] = put(value[place[0]], place[1:], number)
    return changed


def _outcome(round_: Round, raw: bytes) -> str:
    """Return what a client does about a round that arrives as these bytes."""
    try:
        view = read_message(RoundView, raw)
        assert view.round is not None
        config = config_of(round_)
        lenient(min_survivors=1, max_delta=1e-2).check(config, RUN_ID, view.round, view.round.assignments[0])
    except ValidationError:
        return "no message"
    except ProtocolError:
        return "refused"
    return "accepted"


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.few(8)
def test_a_client_takes_a_rounds_odd_number_only_where_it_is_the_served_one(name: str, make_round: MakeRound) -> None:
    kind = MECHANISMS[name]
    fields = {
        key: MECHANISM[key] for key, taken in (("delta", kind.takes_delta), ("batches", kind.takes_batches)) if taken
    }
    round_ = make_round(name, via=kind.vias[0], **fields)
    view = RoundView(run="demo", state="open", config=config_of(round_).digest(), run_id=RUN_ID, round=round_)
    table = json.loads(view.model_dump_json())
    places = list(numbers(table))
    assert ("round", "mechanism", "clients") in places
    outcomes = {
        (place, odd): _outcome(round_, json.dumps(put(table, place, odd)).encode()) for place in places for odd in ODD
    }
    strange = {
        (place, odd)
        for (place, odd), outcome in outcomes.items()
        if outcome == "accepted" and not _same(table, place, odd)
    }
    assert strange == set()


def _same(table: Any, place: Place, number: float) -> bool:
    for key in place:
        table = table[key]
    return bool(table == number)


@pytest.mark.parametrize("local", ["0", "-0.0", "5e-324", "-5e-324", "1e-308", "-1e308", "9e-5", "50.1"])
def test_a_local_epsilon_out_of_range_is_no_message(local: str, make_round: MakeRound) -> None:
    """The check of the noise's scale divided by it: a traceback at 0 and 5e-324, an endless search at -1e308."""
    round_ = make_round("shuffled-laplace", delta=1e-3)
    raw = round_.model_dump_json()
    own = json.dumps(json.loads(raw)["mechanism"]["local"])
    assert raw.count(f'"local":{own}') == 1
    with pytest.raises(ValidationError, match="local"):
        read_message(Round, raw.replace(f'"local":{own}', f'"local":{local}').encode())


FAULTS = [
    ZeroDivisionError("division"),
    OverflowError("large"),
    RecursionError("deep"),
    KeyError("k"),
    TypeError("t"),
    MemoryError(),
    BadMessage("a check of ours\x1b[2J"),
]


class Faulty(Message):
    number: int

    @model_validator(mode="after")
    def _checked(self) -> "Faulty":
        raise FAULTS[self.number]


@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_whatever_a_check_of_a_peers_answer_raises_it_is_a_bad_message(number: int) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={"number": number}))

    async def call() -> None:
        async with Http(Patience(total=0.1), sender=OverHttpx(transport)) as http:
            await http.peer("http://s").get("/v1/x", Faulty)

    kind = type(FAULTS[number]).__name__
    with pytest.raises(
        BadMessage, match=f"^http://s answered something that is no Faulty: its values .*: {kind}: "
    ) as told:
        asyncio.run(call())
    assert "\x1b" not in told.value.detail


@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_whatever_a_check_of_a_callers_body_raises_it_is_the_callers_fault(number: int) -> None:
    router = APIRouter(route_class=MessageRoute)

    @router.post("/faulty")
    def faulty(message: Annotated[Faulty, JsonBody.of(Faulty)]) -> Faulty:
        return message

    with AsgiClient(make_app("t", None, [router], ServiceSettings())) as client:
        answer = client.post("/faulty", json={"number": number})
    assert (answer.status_code, answer.json()["type"]) == (422, BadMessage("").urn)
