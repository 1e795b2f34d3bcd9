"""An aggregator on a database file with a cohort of real clients, for tests of what it tells and releases."""

from collections.abc import Collection
from pathlib import Path

from distrust.aggregator.service import Aggregator
from distrust.common.modular import unpack
from distrust.common.protocol.channels.masked import Masking, ModularSum
from distrust.common.protocol.intermediary.tables import METADATA, VERSION
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import StageView
from distrust.common.protocol.messages.upload import UploadAnswer
from distrust.common.protocol.storage.database import Database
from tests.support.cohorts import MODULUS, Authority, MaskingClients
from tests.support.manual_clock import ManualClock

STAGES = ("keys", "shares", "confirm", "masked", "unmask")
server = Authority()


class AggregatorHarness:
    """An aggregator over a file, a clock set by hand, and one cohort of real clients."""

    def __init__(self, folder: Path, cohort: Cohort) -> None:
        self.url, self.clock, self.cohort, self.clients = (
            f"sqlite:///{folder}/a.sqlite3",
            ManualClock(),
            cohort,
            MaskingClients(cohort),
        )
        self.start()
        self.service.open(cohort)

    def start(self) -> None:
        self.database = Database(self.url, METADATA, VERSION)
        self.service = Aggregator(self.database, self.clock)

    def stop(self) -> None:
        self.service.close()
        self.database.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    def view(self) -> StageView:
        return server.stage(self.service, self.cohort)

    def answer(self, stage: str, slots: Collection[int]) -> UploadAnswer:
        view = self.view()
        assert view.stage == stage
        return self.send(stage, self.clients.answer(view, slots))

    def send(self, stage: str, bodies: dict[int, bytes]) -> UploadAnswer:
        return self.service.receive(self.cohort.address, stage, server.upload(self.cohort, stage, bodies))

    def leave(self, slots: Collection[int]) -> None:
        self.service.leave(self.cohort.address, server.leaving(self.cohort, slots))

    def released(self) -> BatchAnswer:
        """Return the batch, or why there is none, once the mixing thread is done."""
        self.service.settled(self.cohort.address)
        self.service._mixer.submit(lambda: None).result(timeout=240)
        result = self.service.batch(self.cohort.address)
        return BatchAnswer.model_validate_json(result) if isinstance(result, bytes) else result

    def sum(self) -> list[int]:
        answer = self.released()
        assert answer.batch is not None
        assert isinstance(answer.batch.content, ModularSum)
        assert isinstance(self.cohort.channel, Masking)
        return unpack(answer.batch.content.body, MODULUS, self.cohort.channel.dimension).tolist()
