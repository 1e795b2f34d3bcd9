"""The four rounds of secure aggregation in one process, for tests and benchmarks: the wire's bytes, no wire."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from aggregator import protocol
from client.secagg import MaskingClient
from common.crypto.graph import Roster
from common.crypto.members import members_to_bitmap
from common.crypto.parameters import neighbourhood
from common.messages.cohort import Cohort, Masking
from common.modular import Vector

EMPTY: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Departures:
    """Slots that vanish before they answer a stage."""

    keys: Collection[int] = EMPTY
    shares: Collection[int] = EMPTY
    masked: Collection[int] = EMPTY
    unmask: Collection[int] = EMPTY


@dataclass(slots=True)
class Simulation:
    """One cohort's clients and everything that the aggregator saw of them, stage after stage."""

    cohort: Cohort
    clients: dict[int, MaskingClient]
    keys: dict[int, bytes] = field(default_factory=dict)
    shares: dict[int, bytes] = field(default_factory=dict)
    inboxes: dict[int, bytes] = field(default_factory=dict)
    masked: dict[int, bytes] = field(default_factory=dict)
    answers: dict[int, bytes] = field(default_factory=dict)
    _roster: Roster | None = None
    _sharing: protocol.Sharing | None = None

    @property
    def roster(self) -> Roster:
        """After `send_keys`."""
        assert self._roster is not None
        return self._roster

    @property
    def sharing(self) -> protocol.Sharing:
        """After `send_shares`."""
        assert self._sharing is not None
        return self._sharing

    @property
    def shared(self) -> tuple[int, ...]:
        """The members of stage `masked`."""
        return self.sharing.shared

    def bitmap(self, members: Collection[int]) -> bytes:
        """Members as on the wire."""
        return members_to_bitmap(members, self.cohort.clients)

    def send_keys(self, slots: Sequence[int]) -> None:
        """Stage `keys`, from these slots, in this order; and the roster."""
        for slot in slots:
            self.keys[slot] = self.clients[slot].keys()
            protocol.check_keys(self.keys[slot])
        self._roster = protocol.build_roster(self.cohort, self.keys)

    def send_shares(self, slots: Sequence[int]) -> None:
        """Stage `shares`, and the inboxes."""
        for slot in slots:
            self.shares[slot] = self.clients[slot].shares(self.roster)
            protocol.check_shares(self.roster, slot, self.shares[slot])
        self.settle(self.roster)

    def settle(self, roster: Roster) -> None:
        """Close stage `shares`: who goes on, and with which boxes."""
        self._roster, self._sharing = roster, protocol.Sharing(roster, protocol.settle_shared(roster, self.shares))
        self.inboxes = protocol.route(self.sharing, self.shares)

    def send_masked(self, slots: Sequence[int], vectors: Vector) -> None:
        """Stage `masked`: slot i sends row i of `vectors`."""
        members = self.bitmap(self.shared)
        for slot in slots:
            self.masked[slot] = self.clients[slot].masked(vectors[slot], members, self.inboxes[slot])
            protocol.check_masked(self.cohort, self.masked[slot])
        protocol.check_survivors(self.sharing, self.masked)

    def send_unmask(self, slots: Sequence[int]) -> None:
        """Stage `unmask`."""
        survivors = self.bitmap(self.masked)
        for slot in slots:
            self.answers[slot] = self.clients[slot].unmask(survivors)
            protocol.check_unmask(self.sharing, slot, self.answers[slot])

    def recover(self) -> Vector:
        """The survivors' sum modulo m."""
        commitments = {slot: protocol.commitment_of(self.shares[slot]) for slot in self.shared}
        return protocol.recover(self.cohort, self.roster, self.shared, self.masked, commitments, self.answers)


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
    """A masked cohort as the learner plans it: k, t and the minimum follow from the rates."""
    k, t = neighbourhood(n, dropout, corrupt, minimum)
    return Cohort(
        run="simulation",
        round=1,
        cohort=name,
        clients=n,
        minimum=max(n - int(dropout * n), minimum),
        stage_seconds=60.0,
        config=bytes(32),
        ticket_key=bytes(32),
        channel=Masking(modulus=modulus, dimension=dimension, neighbours=k, threshold=t),
    )


def enrol(cohort: Cohort, *, dropout: float = 0.1, corrupt: float = 0.1, floor: int = 1) -> Simulation:
    """A simulation with a fresh client in every slot."""
    slots = range(cohort.clients)
    clients = {s: MaskingClient(cohort, s, floor=floor, dropout=dropout, corrupt=corrupt) for s in slots}
    return Simulation(cohort, clients)


def play(simulation: Simulation, vectors: Vector, departures: Departures, order: Sequence[int]) -> Vector:
    """All four rounds, messages in `order`: the sum of those that sent a masked vector. Raises ProtocolError."""
    gone: set[int] = set(departures.keys)
    simulation.send_keys([s for s in order if s not in gone])
    gone |= set(departures.shares)
    simulation.send_shares([s for s in order if s not in gone])
    gone |= set(departures.masked)
    shared = set(simulation.shared)
    simulation.send_masked([s for s in order if s not in gone and s in shared], vectors)
    gone |= set(departures.unmask)
    simulation.send_unmask([s for s in order if s not in gone and s in simulation.masked])
    return simulation.recover()
