"""Honest work at each service, and the paths that a caller without a token may use."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import StageView
from tests.support.cohorts import Authority, MaskingClients, address, report

SERVER = Authority()
CLIENTS = 32
MEMBERS = 4  # of a masked cohort
WANTED = 32  # tickets
ATTACKED = 64  # clients of a cohort that attackers name
HOUR = 3600.0  # stage of such a cohort: it is open as long as attacks last

Play = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Target:
    """The paths at which one service is attacked, and the calls of its honest use.

    poll    a path whose answer waits for its whole time.
    upload  a path that takes bodies from any caller.
    open    creates the cohort or run that both paths name.
    play    prepares one piece of honest work, and returns a function that plays it.
    """

    poll: str
    upload: str
    open: Callable[[httpx.Client, str], Any]
    play: Callable[[httpx.Client, str], Play]


def _put(client: httpx.Client, cohort: Cohort) -> None:
    client.put(f"/v1/cohorts/{cohort.address}", content=cohort.model_dump_json()).raise_for_status()


def _released(client: httpx.Client, cohort: Cohort) -> None:
    answer = client.get(f"/v1/cohorts/{cohort.address}/batch", params={"wait": 30})
    assert answer.json()["state"] == "released"


def _shuffle(client: httpx.Client, name: str) -> Play:
    """Return a function that plays a cohort at the shuffler, from its opening to its batch."""
    cohort = SERVER.sealed(name=name, clients=CLIENTS)
    upload = SERVER.upload(cohort, "report", {slot: report(cohort, slot) for slot in range(CLIENTS)})
    sent = upload.model_dump_json()

    def play() -> None:
        _put(client, cohort)
        assert client.post(f"/v1/cohorts/{address(name)}/reports", content=sent).json()["accepted"] == CLIENTS
        _released(client, cohort)

    return play


def _aggregate(client: httpx.Client, name: str) -> Play:
    """Return a function that plays a masked cohort at the aggregator, through its five stages."""
    cohort = SERVER.masked(name=name, clients=MEMBERS)
    masking_clients, path, all_slots = MaskingClients(cohort), f"/v1/cohorts/{address(name)}", range(MEMBERS)

    def play() -> None:
        _put(client, cohort)
        for stage in ("keys", "shares", "confirm", "masked", "unmask"):
            wish = SERVER.collecting(cohort, all_slots).model_dump_json() if stage == "confirm" else None
            answer = client.get(f"{path}/stage") if wish is None else client.post(f"{path}/stage", content=wish)
            view = StageView.model_validate_json(answer.content)
            assert view.stage == stage
            upload = SERVER.upload(cohort, stage, masking_clients.answer(view, all_slots))
            reply = client.post(f"{path}/{stage}", content=upload.model_dump_json())
            assert reply.json()["accepted"] == MEMBERS
        _released(client, cohort)

    return play


def _create(client: httpx.Client, name: str) -> None:
    mechanism = {"name": "local-laplace-discrete", "epsilon": 1.0, "via": "shuffler"}
    config = {"version": 1, "run": name, "arms": 2, "horizon": 2000, "mechanism": mechanism}
    client.post("/v1/runs", json=config).raise_for_status()


def _tickets(client: httpx.Client, run: str, request: int, want: int) -> Any:
    body = {"version": 3, "request": f"{request:032x}", "round": 1, "want": want}
    return client.post(f"/v1/runs/{run}/tickets", json=body).json()["grants"]


def _create_taken(client: httpx.Client, name: str) -> None:
    """Create a run and take all tickets of its first round, so that a poll for a later round waits."""
    _create(client, name)
    assert any(not _tickets(client, name, request, 2000) for request in range(10))


def _serve(client: httpx.Client, name: str) -> Play:
    """Return a function that creates a run at the server, takes tickets and cancels the run.

    The server opens the first cohort at a shuffler.
    """

    def play() -> None:
        _create(client, name)
        assert client.get(f"/v1/runs/{name}/round", params={"wait": 30}).json()["round"]["number"] == 1
        assert _tickets(client, name, 1, WANTED)
        client.get(f"/v1/runs/{name}/rounds").raise_for_status()
        client.delete(f"/v1/runs/{name}").raise_for_status()

    return play


TARGETS = {
    "shuffler": Target(
        f"/v1/cohorts/{address('target')}?wait=60",
        f"/v1/cohorts/{address('target')}/reports",
        lambda client, name: _put(client, SERVER.sealed(name=name, clients=ATTACKED, stage_seconds=HOUR)),
        _shuffle,
    ),
    "aggregator": Target(
        f"/v1/cohorts/{address('target')}/stage?after=keys&wait=60",
        f"/v1/cohorts/{address('target')}/keys",
        lambda client, name: _put(client, SERVER.masked(name=name, clients=ATTACKED, stage_seconds=HOUR)),
        _aggregate,
    ),
    "server": Target("/v1/runs/target/round?after=999&wait=60", "/v1/runs/target/tickets", _create_taken, _serve),
}
