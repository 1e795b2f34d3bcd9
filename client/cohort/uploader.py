"""Sends the messages of many clients: cuts uploads to size, reads refusals, announces departures."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import structlog

from distrust.client.checks.agreement import differing_field
from distrust.client.cohort.stats import FleetStats
from distrust.client.cohort.user import AnyStage, User
from distrust.client.transport.base import Transport
from distrust.common.errors import Aborted, BadMessage, Conflict, ProtocolError, Refused, Unavailable
from distrust.common.protocol.crypto.context import claim, cohort_digest
from distrust.common.protocol.crypto.keys import KEY_HASH
from distrust.common.protocol.crypto.receipts import ABSENT, PRESENT, read_list
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import StageView
from distrust.common.protocol.messages.upload import (
    ActionAnswer,
    ActionRequest,
    InboxRequest,
    Item,
    Leaving,
    Receipts,
    RefusedItem,
    Upload,
)

log = structlog.get_logger("distrust.fleet")

LONGEST_POLL = 25.0  # seconds that one request waits for news
PAUSE = 0.05  # seconds between two of them
_OVERHEAD = 128  # bytes of ticket and slot beside each body


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest upload: clients, and bytes of their messages. One client's message is never cut."""

    items: int = 512
    size: int = 8 * 2**20


def cut(items: Sequence[Item], limits: Limits) -> Iterator[list[Item]]:
    """Yield `items` in order, in lists within the limits."""
    part: list[Item] = []
    size = 0
    for item in items:
        weight = len(item.body) + _OVERHEAD
        if part and (len(part) >= limits.items or size + weight > limits.size):
            yield part
            part, size = [], 0
        part.append(item)
        size += weight
    if part:
        yield part


@dataclass(frozen=True, slots=True)
class Uploader:
    """Sends messages to the intermediary, and returns which clients it refused.

    A ticket conflict means that another party used a client's ticket: a client that repeats its own message causes no
    conflict, and only the server can sign a ticket for the same slot again. Clients with a conflict leave, which is
    logged as an error; the fleet's report counts them as `robbed`.

    silent    simulated clients leave without a message, and the intermediary waits for its deadline.
    colluders clients of the cohort that may be the server's own. With more conflicts than that all clients leave.
    """

    transport: Transport
    stats: FleetStats
    limits: Limits = Limits()
    silent: bool = False
    colluders: int = 0
    _conflicts: set[int] = field(default_factory=set, init=False)

    @property
    def conflicts_exceeded(self) -> bool:
        """Return True when other parties hold more of the cohort's slots than its noise can do without."""
        return len(self._conflicts) > self.colluders

    async def send(self, cohort: Cohort, stage: AnyStage, part: Sequence[Item]) -> set[int]:
        """Upload messages. Return the slots whose message was refused; all others are committed.

        part  messages within the limits.

        Raises Refused when the intermediary serves another cohort than the users agreed to, and any other error that it
        answers to the whole upload; BadMessage when it refuses a slot that was not in the upload, or a slot twice.
        """
        assert stage != "receipt"  # which goes to the server
        upload = Upload(cohort=cohort.cohort, digest=cohort_digest(cohort), stage=stage, items=list(part))
        try:
            answer = await self.transport.upload(cohort, upload)
        except Conflict:  # of the whole upload: its digest is not that of the intermediary's cohort
            await self._refuse(cohort, "refuses the messages of its clients as those of another cohort")
        slots = [item.slot for item in answer.refused]
        if answer.reasons is not None:
            raise BadMessage(f"cohort {cohort.cohort}: of stage {stage} not all refusals are listed")
        if len(set(slots)) < len(slots) or not {item.slot for item in part}.issuperset(slots):
            raise BadMessage(f"cohort {cohort.cohort}: the refusals do not belong to the messages of stage {stage}")
        refused = self._count_refused(cohort, stage, answer.refused)
        accepted = [item for item in part if item.slot not in refused]
        self.stats.message_bytes[stage] += sum(len(item.body) for item in accepted)
        self.stats.clients["served"] += len(accepted) if stage in {"masked", "report"} else 0
        return refused

    async def stage(self, cohort: Cohort, after: str, users: Sequence[User], wait: float) -> StageView:
        """Return the cohort's stage, with inboxes of these users. Wait up to `wait` seconds while it is `after`."""
        asked = InboxRequest(cohort=cohort.cohort, **_named(users)) if users else None
        return await self.transport.stage(cohort, after, asked, wait)

    async def agree(self, cohort: Cohort) -> None:
        """Compare the cohort at the intermediary with the one that users agreed to.

        The guarantee of the cohort rests on what the intermediary does with messages, and on its minimum. Raises
        Refused, with the field, where the two differ.
        """
        served = await self.transport.terms(cohort)
        difference = differing_field(cohort, served)
        if difference is not None:
            field_, own, other = difference
            known = f"cohort {cohort.cohort}: the {cohort.via} was told {field_} = {other!r}"
            raise Refused(f"{known}, and its clients {own!r}")

    async def _refuse(self, cohort: Cohort, why: str) -> NoReturn:
        """Raise Refused with the field that differs at the intermediary, or with `why` if it shows the same cohort."""
        await self.agree(cohort)
        raise Refused(f"cohort {cohort.cohort}: the {cohort.via} {why}, and shows the one that they agreed to")

    async def key_hashes(self, cohort: Cohort) -> dict[int, bytes]:
        """Return the hash of the keys of each slot's client, as the server lists them.

        Raises BadMessage for a ragged list.
        """
        hashes = (await self.transport.key_hashes(cohort)).hashes
        if len(hashes) % KEY_HASH or len(hashes) > KEY_HASH * cohort.clients:
            raise BadMessage(f"cohort {cohort.cohort}: the server's list of key hashes has {len(hashes)} bytes")
        return {slot: hashes[KEY_HASH * slot : KEY_HASH * (slot + 1)] for slot in range(len(hashes) // KEY_HASH)}

    async def statement(self, cohort: Cohort, stage: str) -> bytes:
        """Return the aggregator's statement of this stage, as the server published it. Wait until there is one.

        Raises Aborted when the cohort ends without it.
        """
        after = 0
        while True:
            published = await self.transport.statements(cohort, after, LONGEST_POLL)
            for statement in published.statements:
                if statement.stage == stage:
                    return statement.digest
            if published.over:
                raise Aborted(f"cohort {cohort.cohort} ended without a statement of stage {stage}")
            after += len(published.statements)

    async def record_list(self, cohort: Cohort, count: int, stated: bytes) -> set[bytes]:
        """Return the hashes of the records that the server collected, of a cohort that the shuffler has closed.

        count, stated  what the shuffler says of its batch: the records, and the digest of their list.
        Raises         Refused for a list that does not fit, Aborted where the cohort ended without one.
        """
        while True:
            shown = await self.transport.records(cohort, LONGEST_POLL)
            if shown.hashes:
                return read_list(cohort, shown.hashes, count, stated)
            if shown.over:
                raise Aborted(f"cohort {cohort.cohort} is over, and takes no receipts any more")
            await asyncio.sleep(PAUSE)  # the server answers at once while too many wait for news there

    async def give_receipts(self, cohort: Cohort, users: Sequence[User], found: Mapping[int, bool]) -> None:
        """Tell the server for each user whether its record is in the list. A record that is not there is an error."""
        for part in self._parts(users):
            slots, secrets = [user.slot for user in part], b"".join(user.receipt for user in part)
            answers = b"".join(PRESENT if found[slot] else ABSENT for slot in slots)
            receipts = Receipts(cohort=cohort.cohort, slots=slots, secrets=secrets, answers=answers)
            answer = await self.transport.give_receipts(cohort, receipts)
            self._count_refused(cohort, "receipt", answer.refused)
            self.stats.message_bytes["receipt"] += len(secrets) + len(answers)
        lost = [user.slot for user in users if not found[user.slot]]
        if lost:
            log.error("records_absent", cohort=cohort.cohort, slots=lost)
            self.stats.refuse(len(lost), "the shuffler did not deliver the records that it took from clients", "robbed")

    async def request_actions(self, cohort: Cohort, users: Sequence[User]) -> dict[int, int]:
        """Request the users' positions from the shuffler. Return the position of each slot that was not refused.

        Stop after too many ticket conflicts. Raises Refused when the shuffler serves another cohort than the users
        agreed to.
        """
        positions: dict[int, int] = {}
        for part in self._parts(users):
            if self.conflicts_exceeded:
                self.stats.clients["refused"] += len(part)
                continue
            claims = b"".join(claim(cohort, user.slot, user.secret) for user in part)
            request = ActionRequest(cohort=cohort.cohort, **_named(part), claims=claims)
            answer = await self.transport.actions(cohort, request)
            if answer.digest != cohort_digest(cohort):
                await self._refuse(cohort, "assigns its clients the actions of another cohort")
            positions |= _positions_by_slot(cohort, request.slots, answer)
            self._count_refused(cohort, "actions", answer.refused)
        return positions

    async def leave(self, cohort: Cohort, users: Sequence[User]) -> None:
        """Announce that these users leave, unless departures are silent. It does not matter whether it is accepted."""
        try:
            for part in [] if self.silent else self._parts(users):
                keys = b"".join(user.key_hash for user in part)
                await self.transport.leave(cohort, Leaving(cohort=cohort.cohort, **_named(part), keys=keys))
        except Unavailable:
            raise
        except ProtocolError as error:
            log.info("departure_rejected", cohort=cohort.cohort, clients=len(users), code=error.code)

    def _parts(self, users: Sequence[User]) -> Iterator[Sequence[User]]:
        """Yield the users in order, as many at a time as one request may name."""
        for start in range(0, len(users), self.limits.items):
            yield users[start : start + self.limits.items]

    def _count_refused(self, cohort: Cohort, stage: str, refused: Sequence[RefusedItem]) -> set[int]:
        before = self.conflicts_exceeded
        for item in refused:
            conflict = item.type == Conflict("").urn
            where = {"cohort": cohort.cohort, "stage": stage, "slot": item.slot, "why": item.detail}
            if conflict:
                log.error("ticket_conflict", **where)
            else:
                log.warning("message_refused", **where)
            self.stats.refuse(1, f"{item.type.rpartition(':')[2]}: {item.detail}", "robbed" if conflict else "refused")
            self._conflicts.update([item.slot] if conflict else [])
        if self.conflicts_exceeded and not before:
            conflicts = len(self._conflicts)
            log.error("conflicts_exceeded", cohort=cohort.cohort, conflicts=conflicts, colluders=self.colluders)
        return {item.slot for item in refused}


def _named(users: Sequence[User]) -> dict[str, Any]:
    """Return slots and tickets of users, as requests to an intermediary have them."""
    return {"slots": [user.slot for user in users], "tickets": b"".join(user.ticket for user in users)}


def _positions_by_slot(cohort: Cohort, requested: Sequence[int], answer: ActionAnswer) -> dict[int, int]:
    answered = [*answer.slots, *(refused.slot for refused in answer.refused)]
    if len(answer.plays) != len(answer.slots) or sorted(answered) != sorted(requested):
        raise BadMessage(f"cohort {cohort.cohort}: the positions do not belong to the slots that asked")
    if any(position >= cohort.clients for position in answer.plays):
        raise BadMessage(f"cohort {cohort.cohort}: a position that is not in the list")
    return dict(zip(answer.slots, answer.plays, strict=True))
