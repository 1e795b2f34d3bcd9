"""Keeps the receipts of crowds: which clients have found their record in the batch that this server collected.

A cohort that gives receipts is analyzed in three steps. Its batch is stored and its list of records is public; clients
answer; at the deadline, or once as many clients as records have answered and enough of them have found their records,
the answers decide. Silence counts as loss.
`common.protocol.crypto.receipts` has the reason and the bytes.
"""

import hmac
import math
import threading
from collections import OrderedDict
from dataclasses import dataclass

from distrust.common.errors import BadMessage, BadTicket, Conflict, ProtocolError, RunFailed, TooSmall, WrongStage
from distrust.common.protocol.crypto.keys import KEY_HASH
from distrust.common.protocol.crypto.receipts import ABSENT, PRESENT, RECEIPT_SECRET, receipt_hash, record_list
from distrust.common.protocol.intermediary.intake import Intake, known_slots
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import RecordList
from distrust.common.protocol.messages.upload import Item, Receipts, UploadAnswer
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.storage.database_faults import repeated
from distrust.server.runs.active_run import ActiveRun
from distrust.server.storage.store import Store

_CROWDS = 32  # cohorts in memory


def most_absent(config: RunConfig, cohort: Cohort) -> int:
    """Return max(1, ⌊cn⌋): so many clients of a cohort may lie. One more "absent" than that names the shuffler.

    A participant gets one slot in any case, and one client shall name no party.
    """
    return max(1, math.floor(config.intermediary.corrupt * cohort.clients))


@dataclass(slots=True)
class _Crowd:
    """What is known of a cohort whose batch is stored.

    listed  the list L of its records.
    hashes  32 bytes a slot: the hashes of the clients' secrets, which came with their ticket requests.
    said    by slot, whether a client has found its record.
    """

    listed: bytes
    hashes: bytes
    said: dict[int, bool]

    @property
    def present(self) -> int:
        return sum(self.said.values())

    def fault(self, item: Item) -> ProtocolError | None:
        """Return why an answer does not count: a wrong secret, or another answer than the slot's first; else None."""
        expected = self.hashes[KEY_HASH * item.slot : KEY_HASH * (item.slot + 1)]
        if len(expected) != KEY_HASH or not hmac.compare_digest(receipt_hash(item.ticket), expected):
            return BadTicket(f"slot {item.slot}: the secret is not its client's")
        if self.said.get(item.slot, item.body == PRESENT) != (item.body == PRESENT):
            return Conflict(f"slot {item.slot}: its answer is here already, and differs")
        return None


class ReceiptBook:
    """The receipts of all runs. Cohorts that clients asked for lately are in memory: each device may call alone."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._crowds: OrderedDict[str, _Crowd] = OrderedDict()
        self._guard = threading.RLock()

    @repeated
    def collect(self, active: ActiveRun, cohort: Cohort, answer: BatchAnswer) -> BatchAnswer:
        """Store a batch that was collected, so that its list is public. Return the batch that was stored first.

        Raises BadMessage for a batch that cannot be listed, RunFailed for a run that is over.
        """
        assert answer.batch is not None
        with active.lock:
            if active.state != "running":
                raise RunFailed(f"run {cohort.run} is over: the batch of {cohort.cohort} is not kept")
            stored = self._store.batch(cohort.cohort)
            if stored is None:
                record_list(cohort, answer.batch)
                with self._store.writing() as writing:
                    writing.batch(answer)
        return stored or answer

    def listed(self, cohort: Cohort, *, over: bool) -> RecordList:
        """Return the list of the records of a cohort: empty before its batch is stored, and once it is over.

        over  whether the cohort has ended. Then no client needs the list, which takes a while to make.
        """
        crowd = None if over else self._crowd(cohort)
        return RecordList(cohort=cohort.cohort, hashes=b"" if crowd is None else crowd.listed, over=over)

    @repeated
    def take(self, active: ActiveRun, cohort: Cohort, receipts: Receipts) -> UploadAnswer:
        """Commit what clients say of their records, and return how many, with the refused ones.

        A client's first answer counts; the same answer again is accepted. Raises WrongStage while no list is public, or
        once the cohort has ended; BadMessage for a message whose parts have other sizes than its slots.
        """
        intake = Intake(_items(cohort, receipts))
        intake.reject_if(known_slots(cohort))
        with active.lock:
            if active.state != "running" or cohort not in active.pending():
                raise WrongStage(f"cohort {cohort.cohort} has ended: it takes no receipts")
            crowd = self._crowd(cohort)
            if crowd is None:
                raise WrongStage(f"cohort {cohort.cohort}: its records are not listed yet")
            intake.reject_if(crowd.fault)
            fresh = {item.slot: item.body == PRESENT for item in intake.items if item.slot not in crowd.said}
            if fresh:
                try:
                    with self._store.writing() as writing:
                        writing.add_receipts(cohort.cohort, fresh)
                except BaseException:
                    self._forget(cohort)  # only the confirmation may be lost
                    raise
                crowd.said |= fresh
        intake.accepted = len(intake.items)
        return intake.answer()

    def complete(self, active: ActiveRun, cohort: Cohort, survivors: int) -> bool:
        """Return whether no release is possible any more, or as many clients as records have answered.

        Clients that lie may say "absent" without a record. So the answers must also suffice for a release.
        """
        with active.lock:
            crowd = self._crowd(cohort)
            if crowd is None or active.state != "running":
                return True
            absent = len(crowd.said) - crowd.present
            hopeless = len(crowd.hashes) // KEY_HASH - absent < cohort.minimum
            return hopeless or (len(crowd.said) >= survivors and crowd.present >= cohort.minimum)

    def refusal(self, active: ActiveRun, cohort: Cohort, answer: BatchAnswer) -> str | None:
        """Return why the receipts forbid a batch to be analyzed; None where they allow it.

        Whatever others say, the guarantee needs the minimum of clients whose records are in the batch, and no more.
        """
        if self._store.batch(cohort.cohort) != answer:
            return "refused: the batch is not the one whose records its clients were shown"
        present = sum(self._store.receipts(cohort.cohort).values())
        if present >= cohort.minimum:
            return None
        few = TooSmall(present, cohort.minimum, "clients that found their records in the batch").detail
        named = self.named(active, cohort)
        return few if named is None else f"{named}: {few}"

    def named(self, active: ActiveRun, cohort: Cohort) -> str | None:
        """Return in words that the shuffler did not deliver, if more clients say so than may lie; else None."""
        said, allowed = self._store.receipts(cohort.cohort), most_absent(active.config, cohort)
        absent = len(said) - sum(said.values())
        if absent <= allowed:
            return None
        clients = f"{absent} clients have not found the records that it took from them"
        return f"the shuffler did not deliver: {clients}, and {allowed} may lie"

    def _crowd(self, cohort: Cohort) -> _Crowd | None:
        """Return what is known of a cohort; None before its batch is stored, and for one that takes no receipts."""
        with self._guard:
            crowd = self._crowds.get(cohort.cohort)
            if crowd is None and cohort.receipts:
                answer = self._store.batch(cohort.cohort)
                if answer is None or answer.batch is None:
                    return None
                hashes = self._store.key_hashes(cohort.cohort)
                crowd = _Crowd(record_list(cohort, answer.batch), hashes, self._store.receipts(cohort.cohort))
                self._crowds[cohort.cohort] = crowd
                while len(self._crowds) > _CROWDS:
                    self._crowds.popitem(last=False)
            return crowd

    def _forget(self, cohort: Cohort) -> None:
        with self._guard:
            self._crowds.pop(cohort.cohort, None)


def _items(cohort: Cohort, receipts: Receipts) -> list[Item]:
    """Return the answers one by one, each with its secret in place of a ticket."""
    count = len(receipts.slots)
    if receipts.cohort != cohort.cohort:
        raise BadMessage(f"receipts of {receipts.cohort} were sent to {cohort.cohort}")
    if not cohort.receipts:
        raise BadMessage(f"cohort {cohort.cohort} takes no receipts")
    for field, raw, size in (("secrets", receipts.secrets, RECEIPT_SECRET), ("answers", receipts.answers, 1)):
        if len(raw) != size * count:
            raise BadMessage(f"{field}: {len(raw)} bytes, expected {size} for each of the {count} slots")
    if set(receipts.answers) - {*PRESENT, *ABSENT}:
        raise BadMessage("answers: a byte must be 1, present, or 0, absent")
    secrets = (receipts.secrets[RECEIPT_SECRET * i : RECEIPT_SECRET * (i + 1)] for i in range(count))
    answers = (receipts.answers[i : i + 1] for i in range(count))
    rows = zip(receipts.slots, secrets, answers, strict=True)
    return [Item(slot=slot, ticket=secret, body=answer) for slot, secret, answer in rows]
