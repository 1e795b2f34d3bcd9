"""Tests that each report counts exactly once and for its own action, under random operations of assigned actions."""

from collections.abc import Iterable

import numpy as np
from hypothesis.stateful import rule

from distrust.common.errors import ProtocolError
from distrust.common.protocol.channels.assigned import SECRET, GroupedRecords
from distrust.common.protocol.channels.sealed import REPORT_ID, sealed_size
from distrust.common.protocol.crypto.context import claim
from distrust.common.protocol.crypto.seal import open_record, seal
from distrust.common.protocol.intermediary.service import Intermediary
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import StageView
from distrust.common.protocol.messages.upload import ActionRequest
from distrust.common.protocol.storage.database import Database
from distrust.common.randomness import UnsafeSeededStream
from distrust.shuffler.service import Shuffler
from tests.support.cohorts import secret
from tests.support.random_operations import AtTheShuffler, N, bounds, server, some

PLACES = (0, 0, 0, 1, 1, 2)
"""For each play the place of its action in the list."""


class AtTheAssigningShuffler(AtTheShuffler):
    """Clients ask for their plays repeatedly, and report only after they were told their play.

    Sometimes the server asks in a client's place. It learns a play only if the client never does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.client_plays: dict[int, int] = {}
        self.server_plays: dict[int, int] = {}
        self.draws = 0

    def build(self, database: Database) -> Intermediary:
        """Return a shuffler that draws every permutation anew, so that a second order would differ from the first."""
        self.shuffler = Shuffler(database, self.clock, stream=self.stream)
        return self.shuffler

    def stream(self) -> UnsafeSeededStream:
        self.draws += 1
        return UnsafeSeededStream(self.draws)

    def make_cohort(self) -> Cohort:
        return server.assigned(actions=[5, 3, 8], times=[3, 2, 1])

    @rule(who=some)
    def clients_ask(self, who: set[int]) -> None:
        self.ask(who)

    @rule(who=some)
    def the_server_asks(self, who: set[int]) -> None:
        claims = b"".join(claim(self.cohort, slot, bytes([N]) * SECRET) for slot in sorted(who))
        request = server.asking(self.cohort, sorted(who)).model_copy(update={"claims": claims})
        self._request(request, self.server_plays, self.client_plays)

    def ask(self, who: Iterable[int]) -> None:
        self._request(server.asking(self.cohort, sorted(who)), self.client_plays, self.server_plays)

    def _request(self, request: ActionRequest, own: dict[int, int], others: dict[int, int]) -> None:
        """Ask for plays, and assert that no client's play changes, and that no play is told to two parties."""
        try:
            answer = self.shuffler.actions(self.cohort.address, request)
        except ProtocolError:
            assert self.service.settled(self.cohort.address).stage != "report"
            return
        assert {one.slot for one in answer.refused} == set(request.slots) & (self.left | others.keys())
        for slot, play in zip(answer.slots, answer.plays, strict=True):
            assert own.setdefault(slot, play) == play
        known = [*own.values(), *others.values()]
        assert len(set(known)) == len(known) <= N

    def bodies(self, view: StageView, who: set[int]) -> dict[int, bytes]:
        if who:
            self.ask(who)
        key, result = server.seals.public_key().public_bytes_raw(), {}
        for slot in who & self.client_plays.keys():
            mark, value, place = bytes([slot + 1] * REPORT_ID), (1 << slot).to_bytes(8), PLACES[self.client_plays[slot]]
            result[slot] = mark + seal(key, self.cohort, mark, value, place) + secret(slot)
        return result

    def counted(self, answer: BatchAnswer) -> int:
        """Return the sum of the records' values. Each record opens at its group's action only."""
        assert answer.batch is not None
        assert isinstance(answer.batch.content, GroupedRecords)
        content, size = answer.batch.content, sealed_size(8)
        places = np.repeat(np.arange(3), content.counts).tolist()
        cut = [content.body[at : at + size] for at in range(0, len(content.body), size)]
        opened = [open_record(server.seals, self.cohort, one, place) for one, place in zip(cut, places, strict=True)]
        return sum(int.from_bytes(payload) for _, payload in opened)


TestAtTheAssigningShuffler = AtTheAssigningShuffler.TestCase
TestAtTheAssigningShuffler.settings = bounds(15)
