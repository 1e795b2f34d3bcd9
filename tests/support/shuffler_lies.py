"""A shuffler that lies about its next batch, and the evidence of who has done what, which no party has."""

from collections import defaultdict
from dataclasses import dataclass, field

from sqlalchemy import Connection

from distrust.common.protocol.channels.sealed import REPORT_ID, SealedRecords
from distrust.common.protocol.crypto.graph import members_to_bitmap
from distrust.common.protocol.crypto.receipts import record_hash
from distrust.common.protocol.crypto.seal import seal
from distrust.common.protocol.intermediary import store
from distrust.common.protocol.intermediary.store import SELF, State
from distrust.common.protocol.messages.batch import Batch
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.upload import Receipts, Upload
from distrust.common.protocol.storage.database import Database
from distrust.common.randomness import SystemStream
from distrust.shuffler.service import REPORT, Shuffler
from tests.support.manual_clock import ManualClock

Client = tuple[bytes, int, int]
"""A client of a cohort: the cohort's digest, its slot, the number of its fleet."""


@dataclass
class Evidence:
    """What the test knows, and no party.

    sent      by client the different messages with its reward that have left it.
    owners    the client of each sealed record, by the hash under which it is listed.
    replaced  how the shuffler lied about the batch of a cohort, by the cohort's digest.
    liars     clients that said the contrary of what they found, by the cohort's digest.
    wronged   what else has happened: "shuffler-restored", "server-restored", "wrong-number", "stale", "barred".
    """

    sent: defaultdict[Client, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    owners: dict[bytes, Client] = field(default_factory=dict)
    replaced: dict[bytes, str] = field(default_factory=dict)
    liars: defaultdict[bytes, set[Client]] = field(default_factory=lambda: defaultdict(set))
    wronged: set[str] = field(default_factory=set)
    uploads: list[tuple[str, Upload]] = field(default_factory=list)
    receipts: list[Receipts] = field(default_factory=list)

    def note(self, cohort: Cohort, fleet: int, upload: Upload) -> None:
        self.uploads.append((cohort.address, upload))
        for item in upload.items:
            client = upload.digest, item.slot, fleet
            self.sent[client].add(item.body)
            self.owners[record_hash(cohort, item.body[REPORT_ID:])] = client


@dataclass
class Lie:
    """What the shuffler does with the next batch that it releases.

    replace  seals the records of `count` clients anew, from slot `first` on: their rewards are zero.
    drop     leaves these records out, and calls their clients lost.
    repeat   hands over the records of the batch before.
    """

    kind: str
    count: int
    first: int


class LyingShuffler(Shuffler):
    """The shuffler; with its next batch it does what `lies` says, once."""

    def __init__(self, database: Database, clock: ManualClock, lies: list[Lie], evidence: Evidence) -> None:
        super().__init__(database, clock)
        self._lies, self._evidence = lies, evidence
        self._before: list[bytes] = []
        self._lost: dict[str, set[int]] = {}

    def _small_batch(self, tx: Connection, state: State) -> Batch | None:
        rows = list(store.bodies(tx, state.number, REPORT, SELF, state.cohort.clients))
        bodies = [body for _, body in rows]
        if self._lies and (made := self._forged(state, self._lies.pop(), rows)):
            bodies = made
        self._before = bodies
        survivors, content = state.cohort.channel.mix(enumerate(bodies), SystemStream(), None)
        return Batch(cohort=state.name, survivors=survivors, content=content)

    def _forged(self, state: State, lie: Lie, rows: list[tuple[int, bytes]]) -> list[bytes]:
        chosen = {(lie.first + place) % len(rows) for place in range(min(lie.count, len(rows) - 1))}
        made = [body for _, body in rows]
        if lie.kind == "replace":
            made = [own_report(state.cohort, body) if at in chosen else body for at, body in enumerate(made)]
        elif lie.kind == "drop":
            made = [body for at, body in enumerate(made) if at not in chosen]
            self._lost[state.address] = {rows[at][0] for at in chosen}
        else:
            made = self._before
        if made:
            self._evidence.replaced[state.digest] = lie.kind
        return made

    def _bitmap(self, state: State) -> bytes:
        if state.stage != "done" or state.address not in self._lost:
            return super()._bitmap(state)
        with self._database.reading() as tx:
            kept = set(store.slots(tx, state.number, REPORT)) - self._lost[state.address]
        return members_to_bitmap(kept, state.cohort.clients)


def own_report(cohort: Cohort, report: bytes) -> bytes:
    """Return a report of the shuffler's own, with another's report id. Its reward is a number that it knows: zero."""
    assert isinstance(cohort.channel, SealedRecords)
    report_id = report[:REPORT_ID]
    return report_id + seal(cohort.channel.server_key, cohort, report_id, bytes(cohort.channel.size))
