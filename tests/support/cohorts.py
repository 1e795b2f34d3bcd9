"""Cohorts for tests: a server's ticket key, small cohorts of every channel, and uploads that bear real tickets."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from distrust.client.cohort.secagg import MaskingClient, Secrets
from distrust.common.bandit.decisions import AssignedAction
from distrust.common.protocol.channels.assigned import SECRET, AssignedRecords
from distrust.common.protocol.channels.base import Channel
from distrust.common.protocol.channels.bits import LabelledBits
from distrust.common.protocol.channels.masked import Masking
from distrust.common.protocol.channels.sealed import REPORT_ID, Sealed, SealedRecords
from distrust.common.protocol.crypto.context import claim, cohort_digest
from distrust.common.protocol.crypto.graph import Roster, bitmap_to_members
from distrust.common.protocol.crypto.keys import key_hash
from distrust.common.protocol.crypto.parameters import neighbourhood
from distrust.common.protocol.crypto.seal import seal
from distrust.common.protocol.messages.cohort import Cohort, cohort_address, ticket_text
from distrust.common.protocol.messages.status import StageView
from distrust.common.protocol.messages.upload import ActionRequest, InboxRequest, Item, Leaving, Upload

SECONDS = 60.0
MODULUS = 1009
RATES = {"dropout": 0.2, "corrupt": 0.1}


RUN_DIGEST = bytes(32)
"""R of every cohort here."""


def address(name: str) -> str:
    """Return the address of a cohort here, by its name."""
    return cohort_address(RUN_DIGEST, name)


class Authority:
    """The server, as far as an intermediary needs one: it signs tickets, and opens sealed records."""

    def __init__(self) -> None:
        self.tickets = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
        self.hashes: dict[int, tuple[Cohort, dict[int, bytes]]] = {}
        self.seals = X25519PrivateKey.from_private_bytes(bytes(range(32, 64)))

    def cohort(self, channel: Any, clients: int = 5, minimum: int = 3, name: str = "c1", **more: Any) -> Cohort:
        fields = {"run": "r1", "round": 1, "cohort": name, "clients": clients, "minimum": minimum, "channel": channel}
        ticket_key = self.tickets.public_key().public_bytes_raw()
        keys = {"run_digest": RUN_DIGEST, "ticket_key": ticket_key, "terms": "{}"}
        return Cohort(**{"stage_seconds": SECONDS, **fields, **keys, **more})

    def sealed(self, **more: Any) -> Cohort:
        return self.cohort(Sealed(size=8, server_key=self.seals.public_key().public_bytes_raw()), **more)

    def assigned(self, actions: Sequence[int] = (4, 1), times: Sequence[int] = (3, 2), **more: Any) -> Cohort:
        assigned_action = AssignedAction(actions=list(actions), times=list(times))
        seed, key = more.pop("noise_seed", None), self.seals.public_key().public_bytes_raw()
        return self.cohort(
            AssignedRecords(size=8, server_key=key, deal=assigned_action, noise_seed=seed),
            **{"clients": assigned_action.plays, **more},
        )

    def bits(self, labels: int = 3, width: int = 5, **more: Any) -> Cohort:
        return self.cohort(LabelledBits(labels=labels, width=width), **more)

    def masked(self, dimension: int = 2, clients: int = 5, **more: Any) -> Cohort:
        least = clients - int(RATES["dropout"] * clients)
        k, t = neighbourhood(clients, RATES["dropout"], RATES["corrupt"], least)
        channel = Masking(modulus=MODULUS, dimension=dimension, neighbours=k, threshold=t)
        return self.cohort(channel, clients, least, **more)

    def key_hash(self, cohort: Cohort, slot: int) -> bytes:
        """Return the hash of keys that a slot's ticket names: of the first keys uploaded, else 32 zero bytes.

        Empty for the shuffler, whose clients have no keys.
        """
        return self._hashes(cohort).get(slot, bytes(32)) if cohort.via == "aggregator" else b""

    def _hashes(self, cohort: Cohort) -> dict[int, bytes]:
        """Return key hashes by slot. Cohorts are told apart by `id`, because tests use a name again."""
        return self.hashes.setdefault(id(cohort), (cohort, {}))[1]

    def ticket(self, cohort: Cohort, slot: int) -> bytes:
        return self.tickets.sign(ticket_text(cohort, slot, self.key_hash(cohort, slot)))

    def upload(self, cohort: Cohort, stage: Any, bodies: Mapping[int, bytes]) -> Upload:
        if stage == "keys":
            for slot, body in bodies.items():
                self._hashes(cohort).setdefault(slot, key_hash(body))
        items = [Item(slot=slot, ticket=self.ticket(cohort, slot), body=body) for slot, body in bodies.items()]
        return Upload(cohort=cohort.cohort, digest=cohort_digest(cohort), stage=stage, items=items)

    def asking(self, cohort: Cohort, slots: Iterable[int]) -> ActionRequest:
        wanted = list(slots)
        tickets = b"".join(self.ticket(cohort, slot) for slot in wanted)
        claims = b"".join(claim(cohort, slot, secret(slot)) for slot in wanted)
        return ActionRequest(cohort=cohort.cohort, slots=wanted, tickets=tickets, claims=claims)

    def collecting(self, cohort: Cohort, slots: Iterable[int]) -> InboxRequest:
        wanted = list(slots)
        tickets = b"".join(self.ticket(cohort, slot) for slot in wanted)
        return InboxRequest(cohort=cohort.cohort, slots=wanted, tickets=tickets)

    def stage(self, intermediary: Any, cohort: Cohort) -> StageView:
        """Return the stage at the intermediary; in `confirm` with the inboxes of all that take part."""
        view: StageView = intermediary.view(cohort.address)
        if view.stage == "confirm":
            view = intermediary.view(cohort.address, bitmap_to_members(view.members, cohort.clients))
        return view

    def leaving(self, cohort: Cohort, slots: Iterable[int]) -> Leaving:
        leaving = list(slots)
        tickets = b"".join(self.ticket(cohort, slot) for slot in leaving)
        keys = b"".join(self.key_hash(cohort, slot) for slot in leaving)
        return Leaving(cohort=cohort.cohort, slots=leaving, tickets=tickets, keys=keys)


def demo_cohort(channel: Channel, ticket_key: bytes, clients: int = 20, minimum: int = 18) -> Cohort:
    """Return the first cohort of a run "demo", as a server with this ticket key opens it."""
    return Cohort(
        run="demo",
        round=1,
        cohort="demo.1.0.1",
        clients=clients,
        minimum=minimum,
        stage_seconds=1.0,
        run_digest=RUN_DIGEST,
        ticket_key=ticket_key,
        terms="{}",
        channel=channel,
    )


def report(cohort: Cohort, slot: int, mark: int | None = None, place: int | None = None) -> bytes:
    """Return a slot's report: a sealed record whose payload is the slot, or slot mod (width + 1) ones a label.

    mark   identifies the report; the slot when absent.
    place  of the client's action in the list of assigned actions.
    """
    if isinstance(cohort.channel, LabelledBits):
        return labelled(cohort, [slot % (cohort.channel.width + 1)] * cohort.channel.labels)
    report_id = (slot if mark is None else mark).to_bytes(REPORT_ID, "big")
    assert isinstance(cohort.channel, SealedRecords)
    payload = slot.to_bytes(cohort.channel.size, "big")
    message = report_id + seal(cohort.channel.server_key, cohort, report_id, payload, place)
    return message + secret(slot) if isinstance(cohort.channel, AssignedRecords) else message


def secret(slot: int) -> bytes:
    """Return the secret of a slot's honest client, which proves to the shuffler that a report is its own."""
    return slot.to_bytes(SECRET, "big")


def labelled(cohort: Cohort, ones: list[int]) -> bytes:
    """Return a message of labelled bits: for each label its number of ones, followed by zeros."""
    assert isinstance(cohort.channel, LabelledBits)
    rows = np.arange(cohort.channel.width) < np.array(ones)[:, np.newaxis]
    return np.packbits(rows.ravel(), bitorder="little").tobytes()


class MaskingClients:
    """Real clients of one masked cohort. Slot s holds the vector (s + 1, 2 (s + 1), …)."""

    def __init__(self, cohort: Cohort) -> None:
        self.cohort = cohort
        self.clients = {s: MaskingClient(cohort, s, Secrets(), min_survivors=2, **RATES) for s in range(cohort.clients)}
        self.published = {s: key_hash(client.keys()) for s, client in self.clients.items()}
        self.roster: Roster | None = None

    def vector(self, slot: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
        assert isinstance(self.cohort.channel, Masking)
        return (slot + 1) * np.arange(1, self.cohort.channel.dimension + 1, dtype=np.uint64) % np.uint64(MODULUS)

    def total(self, slots: Iterable[int]) -> list[int]:
        return [int(value) for value in sum(self.vector(s) for s in slots) % np.uint64(MODULUS)]

    def answer(self, view: StageView, slots: Iterable[int]) -> dict[int, bytes]:
        """Return by slot the bodies that these clients send in the stage of a view."""
        match view.stage:
            case "keys":
                return {s: self.clients[s].keys() for s in slots}
            case "shares":
                self.roster = Roster(self.cohort, view.members, view.roster or b"")
                return {s: self.clients[s].shares(self.roster, self.published) for s in slots}
            case "confirm":
                assert view.challenge is not None
                inbox = {box.slot: box.body for box in view.inboxes or []}
                stated = (view.members, view.challenge)
                return {s: self.clients[s].confirm(*stated, inbox[s], view.statement or b"") for s in slots}
            case "masked":
                statement = view.statement or b""
                return {s: self.clients[s].masked(self.vector(s), view.members, statement) for s in slots}
            case _:
                return {s: self.clients[s].unmask(view.members, view.statement or b"") for s in slots}
