"""S by secure sum: lead a cohort through keys, shares, masked and unmask; release the sum modulo m, once."""

from collections.abc import Callable, Collection
from typing import Final

from sqlalchemy import Connection

from aggregator import protocol
from aggregator.eyes import see
from aggregator.shelf import Shelf
from common.clock import Clock
from common.crypto.graph import Roster, masking
from common.crypto.members import bitmap_to_members, members_to_bitmap
from common.database import Database
from common.errors import BadMessage, BadParameter, ProtocolError, Unavailable
from common.intermediary import store
from common.intermediary.intake import Fault
from common.intermediary.service import Intermediary
from common.intermediary.stages import silence
from common.intermediary.store import Span, State
from common.messages.batch import Batch, ModularSum
from common.messages.cohort import Cohort
from common.messages.stage import Inbox, StageView
from common.messages.transcript import Seen
from common.messages.upload import Item
from common.modular import pack

KEYS: Final = "keys"
SHARES: Final = "shares"
MASKED: Final = "masked"
UNMASK: Final = "unmask"

_ROSTERS = 32  # cohorts whose graph stays in memory
_INBOXES = 8  # cohorts whose routed boxes stay in memory


class Aggregator(Intermediary):
    """Knows who takes part; of the vectors it learns their sum and nothing else.

    What it tells clients as a stage opens is stored as a StageView in that stage, and read back from there.
    """

    party = "aggregator"
    stages = (KEYS, SHARES, MASKED, UNMASK)

    def __init__(self, database: Database, clock: Clock, ring: Callable[[str], None] = silence) -> None:
        super().__init__(database, clock, ring)
        self._sharings: Shelf[protocol.Sharing] = Shelf(_ROSTERS)
        self._rosters: Shelf[Roster] = Shelf(_ROSTERS)
        self._inboxes: Shelf[dict[int, bytes]] = Shelf(_INBOXES)

    def stage(self, name: str) -> str:
        """The cohort's stage: cheap, for those who wait. Raises WrongCohort."""
        return self._shown(self.settled(name))

    def later(self, stage: str, after: str) -> bool:
        """Whether a stage comes after another one; every end comes after every stage."""
        return self._position(stage) > self._position(after) or stage not in self.stages

    def view(self, name: str, slots: Collection[int] = ()) -> StageView:
        """The open stage and what it needs; in `masked`, the inboxes of these slots. Raises WrongCohort."""
        state = self.settled(name)
        if state.stage == KEYS:
            everyone = members_to_bitmap(range(state.cohort.clients), state.cohort.clients)
            return StageView(cohort=name, stage=KEYS, members=everyone)
        if state.stage == "aborted":
            return StageView(cohort=name, stage="aborted", members=b"", reason=state.reason)
        view = self._told(name, state.stage if state.stage in self.stages else UNMASK)
        if state.stage == MASKED:
            boxes = self._inboxes.get(name, lambda: self._route(state))
            return view.model_copy(update={"inboxes": [Inbox(slot=s, body=boxes[s]) for s in slots if s in boxes]})
        return view.model_copy(update={"stage": "done"}) if state.stage == "done" else view

    def _check(self, cohort: Cohort) -> None:
        channel = masking(cohort)
        k, t, n = channel.neighbours, channel.threshold, cohort.clients
        if not t <= k < n:
            raise BadParameter("neighbours", k, f"must lie in [threshold, clients) = [{t}, {n})")
        if k % 2 and k != n - 1:
            raise BadParameter("neighbours", k, f"must be even, or clients - 1 = {n - 1}")

    def _least(self, state: State) -> int:
        return masking(state.cohort).threshold if state.stage == UNMASK else protocol.least(state.cohort)

    def _members(self, tx: Connection, state: State) -> Collection[int] | None:
        if state.stage == KEYS:
            return None
        return bitmap_to_members(_told(tx, state.name, state.stage).members, state.cohort.clients)

    def _fault(self, _tx: Connection, state: State, _span: Span) -> Fault:
        """The protocol's own check of a body, as a reason to refuse it."""
        check = self._checker(state)

        def fault(item: Item) -> ProtocolError | None:
            try:
                check(item)
            except BadMessage as error:
                return BadMessage(f"slot {item.slot}: {error.detail}")
            return None

        return fault

    def _checker(self, state: State) -> Callable[[Item], None]:
        match state.stage:
            case "keys":
                return lambda item: protocol.check_keys(item.body)
            case "shares":
                roster = self._roster(state)
                return lambda item: protocol.check_shares(roster, item.slot, item.body)
            case "masked":
                return lambda item: protocol.check_masked(state.cohort, item.body)
            case _:
                sharing = self._sharing(state)
                return lambda item: protocol.check_unmask(sharing, item.slot, item.body)

    def _closing(self, tx: Connection, state: State) -> None:
        """Freeze who goes on, and keep what they are told. Nothing here is cached: the transaction may still fail."""
        cohort, name = state.cohort, state.name
        match state.stage:
            case "keys":
                roster = protocol.build_roster(cohort, dict(store.bodies(tx, name, KEYS, -1, cohort.clients)))
                _tell(tx, cohort, StageView(cohort=name, stage=SHARES, members=roster.bitmap, roster=roster.keys))
            case "shares":
                shared = protocol.settle_shared(_roster(tx, cohort), store.slots(tx, name, SHARES))
                _tell(
                    tx, cohort, StageView(cohort=name, stage=MASKED, members=members_to_bitmap(shared, cohort.clients))
                )
            case "masked":
                survivors = store.slots(tx, name, MASKED)
                protocol.check_survivors(_sharing(tx, cohort, _roster(tx, cohort)), survivors)
                bitmap = members_to_bitmap(survivors, cohort.clients)
                _tell(tx, cohort, StageView(cohort=name, stage=UNMASK, members=bitmap))

    def _mix(self, state: State) -> Batch:
        """The survivors' sum, from committed messages alone. Raises TooSmall, BadShare: then nothing is released."""
        name, sharing = state.name, self._sharing(state)
        survivors = bitmap_to_members(self._told(name, UNMASK).members, state.cohort.clients)
        masked = protocol.sum_masked(state.cohort, (body for _, body in self._stored(name, MASKED)))
        commitments = {slot: protocol.commitment_of(body) for slot, body in self._stored(name, SHARES)}
        answers = dict(self._stored(name, UNMASK))
        total = protocol.unmask_total(sharing, survivors, masked, commitments, answers)
        body = pack(total, masking(state.cohort).modulus)
        self._inboxes.drop(name)
        return Batch(cohort=name, survivors=len(survivors), content=ModularSum(body=body))

    def _see(self, state: State, stage: str, slot: int, body: bytes) -> Seen:
        return see(masking(state.cohort), stage, slot, body)

    def _route(self, state: State) -> dict[int, bytes]:
        return protocol.route(self._sharing(state), dict(self._stored(state.name, SHARES)))

    def _told(self, name: str, stage: str) -> StageView:
        with self._database.reading() as tx:
            return _told(tx, name, stage)

    def _roster(self, state: State) -> Roster:
        def read() -> Roster:
            with self._database.reading() as tx:
                return _roster(tx, state.cohort)

        return self._rosters.get(state.name, read)

    def _sharing(self, state: State) -> protocol.Sharing:
        def read() -> protocol.Sharing:
            roster = self._roster(state)
            with self._database.reading() as tx:
                return _sharing(tx, state.cohort, roster)

        return self._sharings.get(state.name, read)


def _tell(tx: Connection, cohort: Cohort, view: StageView) -> None:
    store.say(tx, cohort.cohort, view.stage, view.model_dump_json().encode())


def _told(tx: Connection, name: str, stage: str) -> StageView:
    """What clients were told as a stage opened."""
    body = store.said(tx, name, stage)
    if body is None:
        raise Unavailable(f"cohort {name} was never in stage {stage}")
    return StageView.model_validate_json(body)


def _roster(tx: Connection, cohort: Cohort) -> Roster:
    told = _told(tx, cohort.cohort, SHARES)
    return Roster(cohort, told.members, told.roster or b"")


def _sharing(tx: Connection, cohort: Cohort, roster: Roster) -> protocol.Sharing:
    shared = bitmap_to_members(_told(tx, cohort.cohort, MASKED).members, cohort.clients)
    return protocol.Sharing(roster, shared)
