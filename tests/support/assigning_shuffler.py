"""A shuffler on a database file that assigns actions, for tests of what it answers and releases."""

from pathlib import Path

from distrust.common.bandit.decisions import AssignedAction
from distrust.common.protocol.channels.assigned import AssignedRecords, GroupedRecords
from distrust.common.protocol.channels.sealed import sealed_size
from distrust.common.protocol.intermediary.tables import METADATA, VERSION
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.storage.database import Database
from distrust.shuffler.service import Shuffler
from tests.support.cohorts import Authority, report
from tests.support.manual_clock import ManualClock

server = Authority()
SIZE = sealed_size(8)


class AssigningShuffler:
    """A shuffler over a file, which can be killed and started again. `plays`: the position that each slot got."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self.plays = folder, ManualClock(), dict[int, int]()
        self.start()

    def start(self) -> None:
        self.database = Database(f"sqlite:///{self.folder}/s.sqlite3", METADATA, VERSION)
        self.service = Shuffler(self.database, self.clock)

    def kill(self) -> None:
        """Drop the service without closing it, so that it finishes and writes nothing, and start another."""
        self.database.close()
        self.start()

    def ask(self, cohort: Cohort, *slots: int) -> dict[int, int]:
        answer = self.service.actions(cohort.address, server.asking(cohort, slots))
        assert answer.refused == []
        self.plays |= dict(zip(answer.slots, answer.plays, strict=True))
        return {slot: self.plays[slot] for slot in slots}

    def send(self, cohort: Cohort, *slots: int) -> None:
        bodies = {slot: report(cohort, slot, place=assignment_of(cohort).place(self.plays[slot])) for slot in slots}
        answer = self.service.receive(cohort.address, "report", server.upload(cohort, "report", bodies))
        assert (answer.accepted, answer.refused) == (len(slots), [])

    def released(self, cohort: Cohort) -> GroupedRecords:
        self.service.settled(cohort.address)
        self.service._mixer.submit(lambda: None).result(timeout=240)
        result = self.service.batch(cohort.address)
        assert isinstance(result, bytes)
        batch = BatchAnswer.model_validate_json(result).batch
        assert batch is not None
        assert isinstance(batch.content, GroupedRecords)
        return batch.content


def assignment_of(cohort: Cohort) -> AssignedAction:
    assert isinstance(cohort.channel, AssignedRecords)
    return cohort.channel.deal
