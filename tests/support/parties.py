"""Each intermediary as a party behind HTTP, which can be stopped and started again over the same file."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

import distrust.aggregator.app
import distrust.common.protocol.web.intermediary
import distrust.shuffler.app
from distrust.common.protocol.channels.assigned import SECRET
from distrust.common.protocol.crypto.graph import bitmap_to_members
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import StageView
from distrust.common.wire import Message
from tests.support.asgi import AsgiClient
from tests.support.cohorts import Authority, MaskingClients, address, report, secret
from tests.support.manual_clock import ManualClock

server = Authority()
PROBLEM = "urn:distrust:problem:"
OPERATOR = {"Authorization": "Bearer sesame"}
INSPECTOR = {"Authorization": "Bearer look, but do not touch"}


def problem(answer: httpx.Response) -> tuple[int, str]:
    """Return the status and the code of a problem document."""
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["type"].removeprefix(PROBLEM)


class Party(ABC):
    """One intermediary behind HTTP, which can be stopped and started again over the same file."""

    first: str
    path: str

    def __init__(self, folder: Path) -> None:
        (folder / "token").write_text("sesame")
        (folder / "inspector").write_text("look, but do not touch")
        self.folder, self.clock = folder, ManualClock()
        self.start()

    @abstractmethod
    def build(self, **settings: Any) -> FastAPI: ...

    @abstractmethod
    def cohort(self, **more: Any) -> Cohort: ...

    @abstractmethod
    def bodies(self, cohort: Cohort) -> dict[int, bytes]:
        """Return the first stage's messages of all slots. Further calls return equal messages."""

    def rest(self, cohort: Cohort) -> None:
        """Send the clients' messages of all stages after the first."""
        del cohort  # the shuffler has one stage only

    def start(self, **settings: Any) -> None:
        url, token = f"sqlite:///{self.folder}/x.sqlite3", self.folder / "token"
        given = {"operator_token_file": token, "inspector_token_file": self.folder / "inspector", **settings}
        self.app = self.build(database=url, **given)
        self.client = AsgiClient(self.app)

    def restart(self, **settings: Any) -> None:
        self.stop()
        self.start(**settings)

    def stop(self) -> None:
        self.client.__exit__(None, None, None)
        distrust.common.protocol.web.intermediary.close(self.app)

    def open(self, cohort: Cohort) -> httpx.Response:
        path = f"/v1/cohorts/{cohort.address}"
        return self.client.put(path, json=cohort.model_dump(mode="json"), headers=OPERATOR)

    def send(self, cohort: Cohort, bodies: dict[int, bytes], stage: str | None = None) -> httpx.Response:
        upload = server.upload(cohort, stage or self.first, bodies)
        path = f"/v1/cohorts/{cohort.address}/{self.path if stage is None else stage}"
        return self.client.post(path, json=upload.model_dump(mode="json"))

    def upload(self, body: Message, name: str = "c1") -> httpx.Response:
        """Send a body to the first stage of the cohort with this name, as it is."""
        return self.client.post(f"/v1/cohorts/{address(name)}/{self.path}", json=body.model_dump(mode="json"))

    def leave(self, cohort: Cohort, slots: Iterable[int]) -> httpx.Response:
        body = server.leaving(cohort, slots).model_dump(mode="json")
        return self.client.post(f"/v1/cohorts/{cohort.address}/departures", json=body)

    def release(self, cohort: Cohort) -> bytes:
        """Play cohort c1 to its end, and return the answer that has its batch."""
        self.send(cohort, self.bodies(cohort))
        self.rest(cohort)
        answer = self.batch()
        assert answer.json()["state"] == "released"
        return answer.content

    def get(self, path: str) -> httpx.Response:
        """Get a path below `/v1/cohorts` with the token that it takes: the inspector's for transcripts.

        A path begins with a cohort's name instead of its address: `/c1/batch`.
        """
        inspected = path.partition("?")[0].endswith("/messages")
        if path.startswith("/"):
            path = f"/{address(path[1:])}"
        return self.client.get(f"/v1/cohorts{path}", headers=INSPECTOR if inspected else OPERATOR)

    def batch(self) -> httpx.Response:
        return self.get("/c1/batch?wait=10")

    def batch_now(self) -> BatchAnswer:
        return BatchAnswer.model_validate_json(self.get("/c1/batch").content)


class ShufflerParty(Party):
    first, path = "report", "reports"

    def build(self, **settings: Any) -> FastAPI:
        return distrust.shuffler.app.shuffler_app(distrust.shuffler.app.ShufflerSettings(**settings), self.clock)

    def cohort(self, **more: Any) -> Cohort:
        return server.sealed(**more)

    def bodies(self, cohort: Cohort) -> dict[int, bytes]:
        if not hasattr(self, "_bodies"):
            self._bodies = {slot: report(cohort, slot) for slot in range(cohort.clients)}
        return dict(self._bodies)


class AssigningShufflerParty(ShufflerParty):
    """The shuffler with a cohort whose actions it assigns: two actions, played three times and twice."""

    def cohort(self, **more: Any) -> Cohort:
        return server.assigned(**more)

    def open(self, cohort: Cohort) -> httpx.Response:
        """Open a cohort, and let all its clients ask for their positions."""
        answer = super().open(cohort)
        if answer.status_code == httpx.codes.OK:
            self.ask(cohort, list(range(cohort.clients)))
        return answer

    def send(self, cohort: Cohort, bodies: dict[int, bytes], stage: str | None = None) -> httpx.Response:
        """Send bodies in which each client shows its own secret, also where the rest is another client's."""
        own = {slot: body[:-SECRET] + secret(slot % cohort.clients) for slot, body in bodies.items()}
        return super().send(cohort, own, stage)

    def ask(self, cohort: Cohort, slots: list[int], to: str = "c1") -> httpx.Response:
        return self.client.post(
            f"/v1/cohorts/{address(to)}/actions", json=server.asking(cohort, slots).model_dump(mode="json")
        )


class AggregatorParty(Party):
    first, path = "keys", "keys"

    def build(self, **settings: Any) -> FastAPI:
        return distrust.aggregator.app.aggregator_app(
            distrust.aggregator.app.AggregatorSettings(**settings), self.clock
        )

    def cohort(self, **more: Any) -> Cohort:
        return server.masked(**more)

    def bodies(self, cohort: Cohort) -> dict[int, bytes]:
        if not hasattr(self, "masking_clients"):
            self.masking_clients = MaskingClients(cohort)
        return {slot: client.keys() for slot, client in self.masking_clients.clients.items()}

    def rest(self, cohort: Cohort) -> None:
        for stage in ("shares", "confirm", "masked", "unmask"):
            path = f"/v1/cohorts/{address('c1')}/stage"
            view = StageView.model_validate_json(self.get("/c1/stage").content)
            if stage == "confirm":
                asked = server.collecting(cohort, bitmap_to_members(view.members, cohort.clients))
                answer = self.client.post(path, json=asked.model_dump(mode="json"))
                view = StageView.model_validate_json(answer.content)
            assert view.stage == stage
            present = [slot for slot in range(cohort.clients) if view.members[slot // 8] >> slot % 8 & 1]
            self.send(cohort, self.masking_clients.answer(view, present), stage)
            self.restart()
