"""All parties of one run in random steps, in good or bad faith: a state machine for Hypothesis, and what must hold."""

from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from distrust.common.errors import ProtocolError
from distrust.common.protocol.channels.sealed import Records, SealedRecords, sealed_size
from distrust.common.protocol.crypto.context import cohort_digest
from distrust.common.protocol.crypto.receipts import RECEIPT_SECRET, RECORD_HASH, record_hash
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.upload import Receipts
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.round import TicketAnswer
from distrust.server.learner.rounds import LostCohort, ReleasedCohort
from distrust.server.runs.receipts import most_absent
from tests.support.parties_that_forget import BLOCKS, LIAR, RUN, Parties, TokenState
from tests.support.shuffler_lies import Client, Lie

STAGE = 60.0
CROWD: dict[str, Any] = {"name": "shuffled-laplace", "epsilon": 8.0, "delta": 0.01, "precision": 4}
CENTRAL: dict[str, Any] = {"name": "central-laplace-discrete", "epsilon": 2.0, "via": "shuffler"}
"""The analyzer draws its noise: it must be the same for one batch. Its clients give no receipts."""

fleets = st.integers(0, len(BLOCKS) - 1)
parties_ = st.sampled_from(["server", "shuffler"])
TO_REST = 10**3
steps = st.sampled_from([TO_REST, TO_REST, TO_REST, 3, 8, 20])
"""Steps of the event loop: few of them leave requests on their way, which a crash then interrupts."""

NAMED = {
    "the shuffler did not deliver": {"replaced", "shuffler-restored"},
    "the server's list of records": {"replaced", "shuffler-restored", "server-restored"},
    "the shuffler's database was lost or is an old copy": {"shuffler-restored", "wrong-number"},
    "as its delivery": {"shuffler-restored", "wrong-number"},
    "its database is an old copy": {"server-restored"},
    "its key file is gone": {"server-restored"},
    "these clients have been in round": {"server-restored", "stale"},
    "each client takes part once": {"server-restored", "stale"},
    "is another one than that": {"stale"},
    "conflict:": {"server-restored"},
    "has been revoked by the operator": {"barred"},
    "has expired, at": {"barred"},
    "slots of its quota": {"barred"},
}
"""Words that end a run or a fleet or name a party, and what must have happened before they are said."""


def config(mechanism: dict[str, Any]) -> RunConfig:
    """Return a run of cohorts of 8 and 16 clients: 6 and 12 must answer, of whom 1 and 2 may lie."""
    whole = {"run": RUN, "arms": 2, "horizon": 96, "mechanism": mechanism, "policy": {"first_batch": 3}}
    rates = {"dropout": 0.25, "corrupt": 0.125, "minimum": 2, "stage_seconds": STAGE}
    return RunConfig.model_validate({**whole, "intermediary": rates})


class AllRules(RuleBasedStateMachine):
    """The parties of one run, and every step that one of them may take, in good or bad faith."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.estimates: dict[tuple[bytes, tuple[float, ...]], set[Client]] = {}
        self.of_batch: dict[tuple[bytes, frozenset[bytes]], tuple[float, ...]] = {}
        self.receipts: dict[tuple[str, int], bool] = {}
        self.released: set[str] = set()

    @initialize(mechanism=st.sampled_from([CROWD, CROWD, CENTRAL]))
    def begin(self, mechanism: dict[str, Any]) -> None:
        self.parties = Parties(Path(self.folder.name), config(mechanism))
        self.parties.turns.turn()
        self.is_copied()

    def teardown(self) -> None:
        if hasattr(self, "parties"):
            self.parties.close()
        self.folder.cleanup()

    # What honest parties do.

    @rule(fleet=fleets, times=st.integers(1, 3), steps=steps)
    def takes_part(self, fleet: int, times: int, steps: int) -> None:
        """Let a fleet request tickets, and send the messages of the clients that get some."""
        for _ in range(times):
            self.parties.fleets[fleet].permits.release()
        self.parties.turns.turn(steps)

    @rule(looks=st.integers(0, 3))
    def everyone_takes_part(self, looks: int) -> None:
        """Fill the cohorts that are open, and let some seconds pass. Fleets that have refused start again before.

        Without this rule and the next one hardly any cohort would be released.
        """
        for number, fleet in enumerate(self.parties.fleets):
            if fleet.task.done():
                self.clients_vanish(number)
        for _ in range(8):
            for number in range(len(BLOCKS)):
                self.takes_part(number, 1, TO_REST)
        for _ in range(looks):
            self.time_passes(1.0, TO_REST)

    @rule()
    def a_round_is_played(self) -> None:
        """Let everyone take part, the shuffler close, the server collect, clients give receipts, the server settle."""
        self.everyone_takes_part(3)
        self.is_copied()

    @rule(seconds=st.sampled_from([1.0, 1.0, STAGE / 3, STAGE + 1, 2 * STAGE + 1]), steps=steps)
    def time_passes(self, seconds: float, steps: int) -> None:
        """Let parties look again, and deadlines pass: the shuffler closes, the server collects, clients give receipts.

        Clients that wait look each second.
        """
        self.parties.clock.advance(seconds)
        self.parties.turns.turn(steps)

    @rule(fleet=fleets)
    def messages_are_repeated(self, fleet: int) -> None:
        """Let the answers to a fleet's messages be lost once each from now on, or no more."""
        self.parties.fleets[fleet].twice ^= True

    @rule(fleet=fleets)
    def messages_are_slow(self, fleet: int) -> None:
        """Let a fleet's reports reach the shuffler after its deadline from now on, or in time again."""
        one = self.parties.fleets[fleet]
        one.delay = 0.0 if one.delay else 1.5 * STAGE

    @rule(fleet=fleets, state=st.sampled_from(["open", "open", "revoked", "expired", "exhausted"]))
    def token_is_changed(self, fleet: int, state: TokenState) -> None:
        """Have the operator bar a fleet's participation token, or admit it again.

        Its next request gets no slot (see `FleetInTurn.tickets`). What its clients hold goes on.
        """
        self.parties.set_token(fleet, state)

    @rule(fleet=fleets)
    def clients_vanish(self, fleet: int) -> None:
        """Have a fleet crash and start again. Its clients that are under way say nothing more."""
        self.parties.fleets[fleet].stop()
        self.parties.fleets[fleet].start()
        self.parties.turns.turn()

    @rule(party=parties_)
    def crashes(self, party: str) -> None:
        self.parties.restart(party)
        self.parties.turns.turn()

    @rule()
    def is_copied(self) -> None:
        if len(self.parties.copies) < 4:
            self.parties.copy()

    @rule(party=parties_, which=st.integers(0, 3), crowd_forgets_too=st.booleans())
    def is_restored(self, party: str, which: int, *, crowd_forgets_too: bool) -> None:
        """Restore a service from a copy; in a crowd the other one, too, from the same moment.

        Without receipts, who restores all services must not use them: operations.md says so. Then nobody could
        tell that clients of the copy are in a second sum.
        """
        other = {"server": "shuffler", "shuffler": "server"}[party]
        crowd = self.parties.config.mechanism.name == CROWD["name"]
        if not crowd and f"{other}-restored" in self.parties.evidence.wronged:
            return
        which %= len(self.parties.copies)
        for one in [party, other][: 1 + (crowd and crowd_forgets_too)]:
            self.parties.restore(one, which)
            if one == "server":
                self.receipts, self.released = {}, set()
                self._look(restored=True)
        self.parties.turns.turn()

    # What parties do that lie.

    @rule(
        kind=st.sampled_from(["replace", "replace", "drop", "repeat"]), count=st.integers(1, 8), first=st.integers(0, 7)
    )
    def shuffler_lies(self, kind: str, count: int, first: int) -> None:
        """Have the shuffler lie about the next batch that it closes."""
        self.parties.lies[:] = [Lie(kind, count, first)]

    @rule(change=st.sampled_from([-99, -1, 1, 7]))
    def shuffler_numbers_wrongly(self, change: int) -> None:
        """Have it add this to the number of the next batch that the server collects; -99: give it none."""
        self.parties.numbers[:] = [change]

    @rule(fleet=fleets)
    def a_client_lies(self, fleet: int) -> None:
        """From now on the client in slot `LIAR`, if it is of this fleet, says the contrary of what it found."""
        for number, one in enumerate(self.parties.fleets):
            one.lying = number == fleet

    @precondition(lambda self: hasattr(self, "parties") and self.parties.evidence.receipts)
    @rule(which=st.integers(0, 30), how=st.sampled_from(["same", "changed", "stolen"]))
    def receipts_come_again(self, which: int, how: str) -> None:
        """Send receipts again: as they were; changed, by the client that may lie; or for a slot of another client."""
        evidence = self.parties.evidence
        old = evidence.receipts[which % len(evidence.receipts)]
        if how == "changed":
            if LIAR not in old.slots or self._has_lied(old.cohort):
                return
            at = old.slots.index(LIAR)
            said = bytes([old.answers[at] ^ 1])
            old = Receipts(
                cohort=old.cohort,
                slots=[LIAR],
                secrets=old.secrets[RECEIPT_SECRET * at : RECEIPT_SECRET * (at + 1)],
                answers=said,
            )
            self._note_liar(old.cohort)
        if how == "stolen":
            old = old.model_copy(update={"slots": [slot + 1 for slot in old.slots]})
        try:
            answer = self.parties.server.take_receipts(RUN, old)
        except ProtocolError:
            return
        assert how != "stolen" or answer.accepted == 0
        self.parties.turns.turn()

    @precondition(lambda self: hasattr(self, "parties") and self.parties.evidence.uploads)
    @rule(which=st.integers(0, 30))
    def reports_come_again(self, which: int) -> None:
        address, upload = self.parties.evidence.uploads[which % len(self.parties.evidence.uploads)]
        try:
            self.parties.shuffler.receive(address, "report", upload)
        except ProtocolError:
            return
        self.parties.turns.turn()

    @precondition(lambda self: any(one.answers for one in self.parties.fleets) if hasattr(self, "parties") else False)
    @rule(fleet=fleets, which=st.integers(0, 10), how=st.sampled_from(["round", "cohort", "changed"]))
    def old_answer_is_shown(self, fleet: int, which: int, how: str) -> None:
        """Show a fleet an old round, an old cohort with the tickets that it had there, or one that has changed."""
        one = self.parties.fleets[fleet]
        if not one.answers:
            return
        old = one.answers[which % len(one.answers)]
        assert old.view is not None
        if how == "round":
            old = TicketAnswer(grants=[], view=old.view)
        if how == "changed":
            old = old.model_copy(update={"view": _changed(old)})
        one.stale = [old]
        self.parties.evidence.wronged.add("stale")
        self.takes_part(fleet, 1, TO_REST)

    # What must hold.

    @precondition(lambda self: hasattr(self, "parties"))
    @invariant()
    def promises_hold(self) -> None:
        self._look()
        self.no_client_is_released_twice()
        self.no_honest_party_is_named()

    def _look(self, *, restored: bool = False) -> None:
        """Look at the outcomes and receipts that the server has by now, and check each new one.

        restored  whether they are those of a copy: they were released before.
        """
        stored = self.parties.server.store
        outcomes = stored.outcomes(RUN)
        for outcome in outcomes:
            cohort = stored.cohort_message(outcome.cohort)
            assert cohort is not None
            if isinstance(outcome, LostCohort):
                self._check_named(outcome.reason, cohort_digest(cohort))
            elif outcome.cohort not in self.released:
                self._note(cohort, outcome)
                if not restored:
                    self._no_delivery_is_forgotten()
        self.released = {one.cohort for one in outcomes if isinstance(one, ReleasedCohort)}
        for cohort_name in {receipt.cohort for receipt in self.parties.evidence.receipts}:
            for slot, said in stored.receipts(cohort_name).items():
                assert self.receipts.setdefault((cohort_name, slot), said) == said, "a receipt has changed"

    def _note(self, cohort: Cohort, outcome: ReleasedCohort) -> None:
        """Note which clients are in an estimate, and check that they are enough."""
        answer = self.parties.server.store.batch(cohort.cohort)
        assert answer is not None
        assert answer.batch is not None
        assert isinstance(answer.batch.content, Records)
        hashes = _hashes(cohort, answer.batch.content.body)
        digest, estimate = cohort_digest(cohort), tuple(outcome.sum)
        clients = {self.parties.evidence.owners[one] for one in hashes if one in self.parties.evidence.owners}
        self.estimates.setdefault((digest, estimate), set()).update(clients)
        before = self.of_batch.setdefault((digest, hashes), estimate)
        assert before == estimate, "the same batch has other noise"
        self._no_sum_has_fewer_than_t(cohort, clients, len(hashes))

    def _no_sum_has_fewer_than_t(self, cohort: Cohort, clients: set[Client], survivors: int) -> None:
        """A crowd's sum has the records of `minimum` clients, without those of clients that lied about theirs."""
        digest = cohort_digest(cohort)
        assert survivors >= cohort.minimum
        liars = self.parties.evidence.liars[digest]
        assert len({slot for _, slot, _ in liars}) <= most_absent(self.parties.config, cohort)
        if cohort.receipts:
            honest = {client for client in clients if client[0] == digest} - liars
            assert len(honest) >= cohort.minimum - len(liars), "a sum of fewer than t honest clients"
        elif digest not in self.parties.evidence.replaced:
            assert len(clients) == survivors

    def _no_delivery_is_forgotten(self) -> None:
        """A server that has forgotten a batch which the shuffler delivered releases nothing more of the run."""
        run = self.parties.server.active_run(RUN)
        listed = self.parties.shuffler.delivered(run.run_digest, 0, 100).digests
        delivered = {listed[at : at + 32] for at in range(0, len(listed), 32)}
        known = self.parties.server.store.known_digests(RUN, "shuffler", list(delivered))
        assert delivered == known, "a server that has forgotten a delivery releases"

    def no_client_is_released_twice(self) -> None:
        """No two different estimates have the same client, and no client randomizes its reward a second time."""
        seen: defaultdict[Client, int] = defaultdict(int)
        for clients in self.estimates.values():
            for client in clients:
                seen[client] += 1
        assert all(count == 1 for count in seen.values()), "a client is in two estimates"
        twice = [client for client, bodies in self.parties.evidence.sent.items() if len(bodies) > 1]
        assert not twice, "a client has randomized its reward twice"

    def no_honest_party_is_named(self) -> None:
        view = self.parties.reader.view(RUN)
        assert view.state in {"running", "finished"} or self._check_named(view.reason or "")
        for fleet in self.parties.fleets:
            for reason in fleet.fleet.stats.reasons:
                self._check_named(reason)
            if fleet.task.done() and not fleet.task.cancelled() and fleet.task.exception() is not None:
                error = fleet.task.exception()
                assert isinstance(error, ProtocolError), error
                assert self._check_named(error.detail), error.detail

    def _check_named(self, said: str, digest: bytes | None = None) -> bool:
        """Check that what names a party here has happened. Return whether these words name one.

        digest  of the cohort that they are said of; None: of any.
        """
        evidence = self.parties.evidence
        replaced = bool(evidence.replaced) if digest is None else digest in evidence.replaced
        happened = evidence.wronged | ({"replaced"} if replaced else set())
        named = [causes for words, causes in NAMED.items() if words in said]
        for causes in named:
            assert causes & happened, said
        return bool(named)

    def _note_liar(self, cohort: str) -> None:
        message = self.parties.server.store.cohort_message(cohort)
        if message is not None:
            digest = cohort_digest(message)
            self.parties.evidence.liars[digest] |= {(digest, LIAR, number) for number in range(len(BLOCKS))}

    def _has_lied(self, cohort: str) -> bool:
        message = self.parties.server.store.cohort_message(cohort)
        return message is not None and bool(self.parties.evidence.liars[cohort_digest(message)])


def _hashes(cohort: Cohort, body: bytes) -> frozenset[bytes]:
    assert isinstance(cohort.channel, SealedRecords)
    size = sealed_size(cohort.channel.size)
    hashes = frozenset(record_hash(cohort, body[at : at + size]) for at in range(0, len(body), size))
    assert {len(one) for one in hashes} == {RECORD_HASH}
    return hashes


def _changed(answer: TicketAnswer) -> Any:
    """Return the answer's round with other cohorts of the same names: their deadline is another one."""
    view = answer.view
    assert view is not None
    assert view.round is not None
    changed = [
        assignment.model_copy(update={"cohort": assignment.cohort.model_copy(update={"stage_seconds": STAGE + 1})})
        for assignment in view.round.assignments
    ]
    return view.model_copy(update={"round": view.round.model_copy(update={"assignments": changed})})
