"""Tests that an intermediary makes a transaction again that its database has ended for another's sake."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle

import pytest
from sqlalchemy import Connection

from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.status import Transcript
from distrust.common.protocol.messages.upload import UploadAnswer
from distrust.common.protocol.storage.database import Database
from distrust.common.protocol.storage.database_faults import Collision
from tests.support.parties import Party


def test_each_transaction_may_be_ended_once_for_anothers_sake_and_no_client_sees_it(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction, turns, ended = Database.transaction, cycle([True, False]), []

    @contextmanager
    def collides(database: Database) -> Iterator[Connection]:
        with transaction(database) as tx:
            yield tx
            if next(turns):
                ended.append(1)
                raise Collision("deadlock detected")

    monkeypatch.setattr(Database, "transaction", collides)
    cohort = party.cohort()
    assert party.open(cohort).status_code == 200
    first = party.send(cohort, party.bodies(cohort))
    taken = UploadAnswer.model_validate_json(first.content)
    assert (taken.accepted, taken.refused) == (cohort.clients, [])
    party.rest(cohort)
    answer = party.batch()
    assert answer.json()["state"] == "released"
    assert BatchAnswer.model_validate_json(answer.content).delivery == 1
    messages = Transcript.model_validate_json(party.get("/c1/messages").content).messages
    assert len({(one.peer, one.stage, one.direction) for one in messages}) == len(messages) >= cohort.clients
    assert len(ended) >= 2
