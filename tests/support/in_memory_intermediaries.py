"""Both intermediaries in memory, and clients of theirs: real tickets, seals and sums, without masks.

A client of the aggregator sends its packed vector in clear. Everything else is as deployed: tickets are verified and
single-use, records are sealed, bits are permuted, a cohort below its minimum is aborted.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from numpy.typing import NDArray

from distrust.common.errors import Aborted, BadTicket, Conflict, Gone, Unavailable, WrongCohort, WrongStage
from distrust.common.protocol.crypto.seal import seal
from distrust.common.protocol.intermediary.deadlines import FIRST_SECONDS
from distrust.common.protocol.messages.batch import Batch, BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort, Grant, ticket_text
from distrust.common.protocol.messages.status import DeliveryList, StatementList
from distrust.common.protocol.run.round import Assignment, Round, TicketAnswer
from distrust.common.randomness import SystemStream, UnsafeSeededStream


@dataclass
class HeldCohort:
    """One cohort: bodies by slot, the slots that left, and the answer once it has ended."""

    cohort: Cohort
    bodies: dict[int, bytes] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    answer: BatchAnswer | None = None
    since: float = 0.0  # when it was opened last


class InMemoryIntermediaries:
    """The coordinator calls `open` and `collect`, clients call `send` and `leave`. Nothing answers while `down`.

    time  seconds. A cohort without a message is aborted `FIRST_SECONDS` after it was opened last.
    """

    def __init__(self) -> None:
        self.time = 0.0
        self.held: dict[str, HeldCohort] = {}
        self.down = False
        self.opened: list[str] = []
        self.settled: set[str] = set()
        self.pruned: set[tuple[bytes, str]] = set()
        self.delivered_digests: dict[tuple[bytes, str], list[bytes]] = {}

    async def open(self, cohort: Cohort) -> None:
        self._reachable()
        self._not_pruned(cohort.run_digest)
        known = self.held.setdefault(cohort.cohort, HeldCohort(cohort, since=self.time))
        if known.cohort != cohort:
            raise Conflict(f"cohort {cohort.cohort} is open with other parameters")
        self.opened.append(cohort.cohort)
        self._expire(known)
        if known.answer is not None and known.answer.state == "aborted":
            raise Aborted(f"cohort {cohort.cohort} was aborted: {known.answer.reason}")
        if not known.bodies and not known.gone:
            known.since = self.time

    async def statements(self, cohort: Cohort, after: int) -> StatementList:
        """Return no statements, because nothing is masked here."""
        self._reachable()
        return StatementList(cohort=self._held(cohort.cohort).cohort.cohort, statements=[], over=True)

    async def collect(self, cohort: Cohort, *, opening: bool = False) -> BatchAnswer:
        if opening:
            with suppress(Aborted):  # the answer says so, too
                await self.open(cohort)
        self._reachable()
        held = self._held(cohort.cohort)
        self._expire(held)
        if held.answer is None and len(held.bodies) + len(held.gone) == held.cohort.clients:
            held.answer = self._numbered(held.cohort, _close(held))
        return held.answer or BatchAnswer(cohort=cohort.cohort, state="waiting")

    async def delivered(self, run_digest: bytes, via: str, after: int) -> DeliveryList:
        self._reachable()
        self._not_pruned(run_digest)
        digests = self.delivered_digests.get((run_digest, via), [])
        return DeliveryList(count=len(digests), digests=b"".join(digests[after:]))

    async def settle(self, run_digest: bytes, via: str, cohorts: Sequence[str]) -> None:
        """Note which cohorts are collected no more."""
        self._reachable()
        self.settled.update(cohorts)

    async def prune(self, run_digest: bytes, via: str) -> None:
        """Forget a run."""
        self._reachable()
        self.pruned.add((run_digest, via))
        self.held = {name: one for name, one in self.held.items() if one.cohort.run_digest != run_digest}
        self.delivered_digests.pop((run_digest, via), None)

    def _numbered(self, cohort: Cohort, answer: BatchAnswer) -> BatchAnswer:
        """Return an answer with its position among the batches released of its run."""
        if answer.batch is None:
            return answer
        digests = self.delivered_digests.setdefault((cohort.run_digest, cohort.via), [])
        digests.append(cohort.digest())
        return answer.model_copy(update={"delivery": len(digests)})

    def send(self, cohort: str, slot: int, ticket: bytes, body: bytes) -> None:
        """Take one client's only message. Raises BadTicket, Conflict, WrongStage."""
        held = self._held(cohort)
        check_ticket(held.cohort, slot, ticket)
        self._expire(held)
        if held.answer is not None:
            raise WrongStage(f"cohort {cohort} is closed")
        if held.bodies.setdefault(slot, body) != body:
            raise Conflict(f"slot {slot} has sent another body")

    def leave(self, cohort: str, slot: int, ticket: bytes) -> None:
        held = self._held(cohort)
        check_ticket(held.cohort, slot, ticket)
        held.gone.add(slot)

    def _expire(self, held: HeldCohort) -> None:
        silent = not held.bodies and not held.gone and held.answer is None
        if silent and self.time >= held.since + min(FIRST_SECONDS, held.cohort.stage_seconds):
            reason = f"0 survivors, needs {held.cohort.minimum}"
            held.answer = BatchAnswer(cohort=held.cohort.cohort, state="aborted", reason=reason)

    def _held(self, cohort: str) -> HeldCohort:
        if cohort not in self.held:
            raise WrongCohort(f"cohort {cohort} is not known here")
        return self.held[cohort]

    def _not_pruned(self, run_digest: bytes) -> None:
        if run_digest in {run for run, _ in self.pruned}:
            raise Gone("the run was pruned here: nothing of it is left")

    def _reachable(self) -> None:
        if self.down:
            raise Unavailable("the intermediary is down")


def check_ticket(cohort: Cohort, slot: int, ticket: bytes) -> None:
    """Raise BadTicket unless the server signed exactly this slot."""
    text = ticket_text(
        cohort, slot, bytes(32) if cohort.via == "aggregator" else b""
    )  # as `tests.support.server_harness` asks for them
    try:
        Ed25519PublicKey.from_public_bytes(cohort.ticket_key).verify(ticket, text)
    except InvalidSignature as error:
        raise BadTicket(f"slot {slot} of cohort {cohort.cohort}") from error


def _close(held: HeldCohort) -> BatchAnswer:
    name, survivors, lost = held.cohort.cohort, len(held.bodies), len(held.gone)
    if survivors < held.cohort.minimum:
        reason = f"{survivors} survivors, needs {held.cohort.minimum}"
        return BatchAnswer(cohort=name, state="aborted", reason=reason, lost=lost)
    survivors, content = held.cohort.channel.mix(sorted(held.bodies.items()), SystemStream(), None)
    batch = Batch(cohort=name, survivors=survivors, content=content)
    return BatchAnswer(cohort=name, state="released", batch=batch, lost=lost)


def checksum(records: list[bytes]) -> bytes:
    mixed = bytes(32)
    for record in records:
        mixed = bytes(a ^ b for a, b in zip(mixed, hashlib.sha256(record).digest(), strict=True))
    return mixed


class InMemoryClients:
    """All the clients of a run. The clients of an arm get the rewards of `rewards[arm]` in turn, without chance.

    quit  slots that leave without a message, by arm and attempt ("arm.attempt").
    seed  of the privacy noise.
    """

    def __init__(
        self,
        intermediaries: InMemoryIntermediaries,
        rewards: list[list[float]],
        quit_: dict[str, int] | None = None,
        seed: int = 1,
    ) -> None:
        self._intermediaries, self._rewards, self._quit, self._seed = intermediaries, rewards, quit_ or {}, seed
        self.rows: dict[str, NDArray[np.uint64]] = {}
        self.sent: dict[str, int] = {}

    def answer(self, round_: Round, answer: TicketAnswer) -> int:
        """Use all these tickets, and return how many there were."""
        for grant in answer.grants:
            assignment = next(one for one in round_.assignments if one.cohort.cohort == grant.cohort)
            self._send(round_, assignment, grant)
        return sum(grant.count for grant in answer.grants)

    def _send(self, round_: Round, assignment: Assignment, grant: Grant) -> None:
        cohort = assignment.cohort
        rows = self._messages(round_, assignment)
        sealer = partial(seal, cohort.channel.sealed_to, cohort)
        leaving = self._quit.get(".".join(cohort.cohort.split(".")[-2:]), 0)
        for slot in range(grant.first, grant.first + grant.count):
            place = 64 * (slot - grant.first)
            ticket = grant.signatures[place : place + 64]
            if slot < leaving:
                self._intermediaries.leave(cohort.cohort, slot, ticket)
                continue
            report = cohort.channel.report(rows[slot], round_.mechanism.modulus, sealer, b"")
            self._intermediaries.send(cohort.cohort, slot, ticket, report)
            self.sent[cohort.cohort] = self.sent.get(cohort.cohort, 0) + 1

    def _messages(self, round_: Round, assignment: Assignment) -> NDArray[np.uint64]:
        """Return the randomized messages of a whole cohort, drawn once: shape (n, dimension)."""
        cohort = assignment.cohort
        if cohort.cohort not in self.rows:
            rewards = np.resize(np.array(self._rewards[assignment.arm]), cohort.clients)
            stream = UnsafeSeededStream(self._seed, cohort.run, cohort.cohort)
            self.rows[cohort.cohort] = round_.mechanism.randomize(round_.statistic.vectors(rewards), stream)
        return self.rows[cohort.cohort]
