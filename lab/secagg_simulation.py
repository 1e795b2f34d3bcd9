"""Plays the five stages of secure aggregation in one process, with the wire's bytes, for tests and benchmarks."""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from distrust.aggregator import protocol
from distrust.aggregator.confirmation import Sharing, Verdict
from distrust.aggregator.recovery import Recovered, sum_masked, unmask_total
from distrust.client.cohort.secagg import CHALLENGE, MaskingClient, Secrets
from distrust.common.modular import Vector
from distrust.common.protocol.channels.masked import Masking
from distrust.common.protocol.crypto.context import confirm_statement, masked_statement, unmask_statement
from distrust.common.protocol.crypto.graph import Roster, members_to_bitmap
from distrust.common.protocol.crypto.keys import key_hash
from distrust.common.protocol.crypto.parameters import neighbourhood
from distrust.common.protocol.messages.cohort import Cohort

EMPTY: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Departures:
    """Slots that vanish before they answer a stage."""

    keys: Collection[int] = EMPTY
    shares: Collection[int] = EMPTY
    confirm: Collection[int] = EMPTY
    masked: Collection[int] = EMPTY
    unmask: Collection[int] = EMPTY


@dataclass(slots=True)
class Simulation:
    """One cohort's clients and everything that the aggregator saw of them, stage after stage.

    published    the key hashes that the server publishes. statements   by stage, as both parties compute them.
    """

    cohort: Cohort
    clients: dict[int, MaskingClient]
    keys: dict[int, bytes] = field(default_factory=dict)
    shares: dict[int, bytes] = field(default_factory=dict)
    inboxes: dict[int, bytes] = field(default_factory=dict)
    confirmed: dict[int, bytes] = field(default_factory=dict)
    masked: dict[int, bytes] = field(default_factory=dict)
    answers: dict[int, bytes] = field(default_factory=dict)
    published: dict[int, bytes] = field(default_factory=dict)
    statements: dict[str, bytes] = field(default_factory=dict)
    challenge: bytes = b""
    _roster: Roster | None = None
    _sharing: Sharing | None = None
    _verdict: Verdict | None = None

    @property
    def roster(self) -> Roster:
        """Return the roster. Needs `send_keys`."""
        assert self._roster is not None
        return self._roster

    @property
    def sharing(self) -> Sharing:
        """Return the clients that shared. Needs `send_shares`."""
        assert self._sharing is not None
        return self._sharing

    @property
    def verdict(self) -> Verdict:
        """Return the members, and which shares count. Needs `send_confirm`."""
        assert self._verdict is not None
        return self._verdict

    @property
    def shared(self) -> tuple[int, ...]:
        """Return the members of stage `confirm`."""
        return self.sharing.members

    @property
    def members(self) -> tuple[int, ...]:
        """Return the members of stage `masked`."""
        return self.verdict.sharing.members

    def bitmap(self, members: Collection[int]) -> bytes:
        """Return members as on the wire."""
        return members_to_bitmap(members, self.cohort.clients)

    def send_keys(self, slots: Sequence[int]) -> None:
        """Stage `keys`, from these slots, in this order; and the roster."""
        for slot in slots:
            self.keys[slot] = self.clients[slot].keys()
            protocol.check_keys(self.keys[slot])
            self.published[slot] = key_hash(self.keys[slot])
        self._roster = protocol.build_roster(self.cohort, self.keys)

    def send_shares(self, slots: Sequence[int]) -> None:
        """Stage `shares`, and the inboxes."""
        for slot in slots:
            self.shares[slot] = self.clients[slot].shares(self.roster, self.published)
            protocol.check_shares(self.roster, slot, self.shares[slot])
        self.settle(self.roster)

    def settle(self, roster: Roster) -> None:
        """Close stage `shares`: fix the members, their inboxes and the challenge."""
        self._roster, self._sharing = roster, Sharing(roster, protocol.settle_shared(roster, self.shares))
        self.inboxes = protocol.route(self.sharing, self.shares)
        self.challenge = os.urandom(CHALLENGE)
        self.statements["confirm"] = confirm_statement(
            roster.digest, roster.cohort, self.bitmap(self.shared), self.challenge
        )

    def send_confirm(self, slots: Sequence[int]) -> None:
        """Stage `confirm`, and which shares count."""
        shared, statement = self.bitmap(self.shared), self.statements["confirm"]
        for slot in slots:
            body = self.clients[slot].confirm(shared, self.challenge, self.inboxes[slot], statement)
            self.confirmed[slot] = body
            protocol.check_confirm(self.sharing, slot, body)
        self.judge()

    def judge(self) -> None:
        """Close stage `confirm`: fix the members of the next stage."""
        self._verdict = protocol.close_confirm(self.sharing, self.confirmed)
        members = self.bitmap(self.members)
        self.statements["masked"] = masked_statement(self.statements["confirm"], self.cohort, members)

    def send_masked(self, slots: Sequence[int], vectors: Vector) -> None:
        """Stage `masked`: slot i sends row i of `vectors`."""
        members, statement = self.bitmap(self.members), self.statements["masked"]
        for slot in slots:
            self.masked[slot] = self.clients[slot].masked(vectors[slot], members, statement)
            protocol.check_masked(self.cohort, self.masked[slot])
        self.freeze()

    def freeze(self) -> None:
        """Close stage `masked`: fix the survivors."""
        protocol.check_survivors(self.verdict.sharing, self.masked)
        survivors = self.bitmap(self.masked)
        self.statements["unmask"] = unmask_statement(self.statements["masked"], self.cohort, survivors)

    def send_unmask(self, slots: Sequence[int]) -> None:
        """Stage `unmask`."""
        survivors = self.bitmap(self.masked)
        for slot in slots:
            self.answers[slot] = self.clients[slot].unmask(survivors, self.statements["unmask"])
            protocol.check_unmask(self.verdict.sharing, slot, self.answers[slot])

    def release(self) -> Recovered:
        """Return the survivors' sum modulo m, and the clients that lied."""
        commitments = {slot: self.shares[slot][: protocol.COMMITMENT] for slot in self.members}
        masked = sum_masked(self.cohort, self.masked.values())
        return unmask_total(self.verdict, self.masked, masked, commitments, self.answers)

    def recover(self) -> Vector:
        """Return the survivors' sum modulo m."""
        return self.release().total


def make_cohort(
    n: int,
    modulus: int,
    dimension: int,
    *,
    dropout: float = 0.1,
    corrupt: float = 0.1,
    minimum: int = 0,
    name: str = "c",
) -> Cohort:
    """Return a masked cohort as the learner plans it: k, t and the minimum follow from the rates."""
    k, t = neighbourhood(n, dropout, corrupt, minimum)
    return Cohort(
        run="simulation",
        round=1,
        cohort=name,
        clients=n,
        minimum=max(n - int(dropout * n), minimum),
        stage_seconds=60.0,
        run_digest=bytes(32),
        ticket_key=bytes(32),
        terms="{}",
        channel=Masking(modulus=modulus, dimension=dimension, neighbours=k, threshold=t),
    )


def enrol(cohort: Cohort, *, dropout: float = 0.1, corrupt: float = 0.1, min_survivors: int = 1) -> Simulation:
    """Return a simulation with a new client in every slot."""
    slots = range(cohort.clients)
    rates = {"dropout": dropout, "corrupt": corrupt}
    clients = {s: MaskingClient(cohort, s, Secrets(), min_survivors=min_survivors, **rates) for s in slots}
    return Simulation(cohort, clients)


def play_stages(simulation: Simulation, vectors: Vector, departures: Departures, order: Sequence[int]) -> Vector:
    """Play all five stages, messages in `order`. Return the sum of the clients that sent a masked vector.

    Raises ProtocolError.
    """
    gone: set[int] = set(departures.keys)
    simulation.send_keys([s for s in order if s not in gone])
    gone |= set(departures.shares)
    simulation.send_shares([s for s in order if s not in gone])
    gone |= set(departures.confirm)
    shared = set(simulation.shared)
    simulation.send_confirm([s for s in order if s not in gone and s in shared])
    gone |= set(departures.masked)
    members = set(simulation.members)
    simulation.send_masked([s for s in order if s not in gone and s in members], vectors)
    gone |= set(departures.unmask)
    simulation.send_unmask([s for s in order if s not in gone and s in simulation.masked])
    return simulation.recover()
