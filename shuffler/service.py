"""S by permutation: hold reports until everybody answered, left or is late; release them in random order, once."""

import hashlib
from collections.abc import Callable, Collection

import numpy as np
from sqlalchemy import Connection

from common.clock import Clock
from common.crypto.members import members_to_bitmap
from common.crypto.seal import REPORT_ID, sealed_size
from common.database import Database
from common.errors import BadParameter
from common.intermediary import store
from common.intermediary.checks import check_size
from common.intermediary.intake import Fault, measured
from common.intermediary.service import Intermediary
from common.intermediary.stages import silence
from common.intermediary.store import State
from common.messages.batch import Batch, Content, PermutedBits, Records
from common.messages.cohort import Cohort, LabelledBits, Sealed
from common.messages.stage import StageView
from common.messages.transcript import Seen
from common.messages.upload import Item
from common.randomness import Stream, SystemStream
from shuffler.eyes import see
from shuffler.permute import count_ones, permutation, scatter

REPORT = "report"


class Shuffler(Intermediary):
    """Knows who sent what, and cannot read it when it is sealed; the server reads it, and cannot know who sent it.

    stream   makes the randomness of one permutation: the operating system's, unless a test says otherwise.
    """

    party = "shuffler"
    stages = (REPORT,)

    def __init__(
        self,
        database: Database,
        clock: Clock,
        ring: Callable[[str], None] = silence,
        stream: Callable[[], Stream] = SystemStream,
    ) -> None:
        super().__init__(database, clock, ring)
        self._stream = stream

    def view(self, name: str, _slots: Collection[int] = ()) -> StageView:
        """Who may report; in `done`, who did. Raises WrongCohort."""
        state = self.settled(name)
        stage = self._shown(state)
        return StageView.model_validate(
            {"cohort": name, "stage": stage, "reason": state.reason, "members": self._bitmap(state)}
        )

    def _bitmap(self, state: State) -> bytes:
        if state.stage != "done":
            return members_to_bitmap(range(state.cohort.clients), state.cohort.clients)
        with self._database.reading() as tx:
            return members_to_bitmap(store.slots(tx, state.name, REPORT), state.cohort.clients)

    def _check(self, cohort: Cohort) -> None:
        if isinstance(cohort.channel, Sealed):
            check_size("server_key", cohort.channel.server_key, 32)

    def _fault(self, _tx: Connection, state: State) -> Fault:
        return measured(report_size(state.cohort))

    def _mark(self, state: State, item: Item) -> bytes | None:
        return item.body[:REPORT_ID] if isinstance(state.cohort.channel, Sealed) else None

    def _closing(self, _tx: Connection, _state: State) -> None:
        """Nothing is said to clients."""

    def _mix(self, state: State) -> Batch:
        """The batch of a frozen cohort, from the reports in the database."""
        channel = state.cohort.channel
        bodies = (body for _, body in self._stored(state.name, REPORT))
        if isinstance(channel, LabelledBits):
            clients, ones = count_ones(bodies, channel.labels, channel.width)
            content: Content = permuted(ones.tolist(), clients * channel.width, self._stream())
        else:
            records = list(bodies)
            clients, content = len(records), shuffled(records, self._stream())
        return Batch(cohort=state.name, survivors=clients, content=content)

    def _see(self, state: State, stage: str, slot: int, body: bytes) -> Seen:
        return see(state.cohort, stage, slot, body)


def report_size(cohort: Cohort) -> int:
    """Bytes of one client's report. Raises BadParameter for a channel that is no shuffler's."""
    match cohort.channel:
        case Sealed(size=size):
            return REPORT_ID + sealed_size(size)
        case LabelledBits(labels=labels, width=width):
            return (labels * width + 7) // 8
        case other:
            raise BadParameter("channel", other.kind, "must be sealed or bits")


def shuffled(bodies: list[bytes], stream: Stream) -> Records:
    """Reports (report id ‖ sealed record, all of one size) to sealed records alone, in random order."""
    ids = np.frombuffer(b"".join(hashlib.sha256(body[:REPORT_ID]).digest() for body in bodies), dtype=np.uint8)
    checksum = np.bitwise_xor.reduce(ids.reshape(-1, 32), axis=0).tobytes()
    order = permutation(len(bodies), stream).tolist()
    body = b"".join(bodies[index][REPORT_ID:] for index in order)
    return Records(count=len(bodies), body=body, checksum=checksum)


def permuted(ones: list[int], size: int, stream: Stream) -> PermutedBits:
    """For each label `size` bits, of which `ones` are set, in random order."""
    return PermutedBits(body=b"".join(scatter(count, size, stream) for count in ones))
