"""Bulk uploads cut to size, refusals read, departures announced."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from distrust.client.agreement import differing_field
from distrust.client.stats import FleetStats
from distrust.client.transport import Transport
from distrust.client.user import AnyStage, User
from distrust.common.crypto.context import cohort_digest
from distrust.common.crypto.keys import KEY_HASH
from distrust.common.errors import Aborted, BadMessage, Conflict, ProtocolError, Refused, Unavailable
from distrust.common.messages.cohort import Cohort
from distrust.common.messages.deal import ActionAnswer, ActionRequest
from distrust.common.messages.upload import Departure, Item, RefusedItem, Upload

log = structlog.get_logger("distrust.fleet")

LONG_POLL = 25.0  # seconds that one request waits for news
_OVERHEAD = 128  # bytes of ticket and slot beside each body


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest upload: clients, and bytes of their messages. One client's message is never cut."""

    items: int = 512
    size: int = 8 * 2**20


def cut(items: Sequence[Item], limits: Limits) -> Iterator[list[Item]]:
    """`items` in order, in lists within the limits."""
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
    """Takes messages to S, and says which clients are out of it.

    A conflict means that somebody else was there with the client's ticket: a repeat of its own words is no conflict,
    and only the server could have signed the ticket twice. Such clients are `robbed`: they leave, and it is an error.

    silent    simulated clients vanish without a word, and S waits for its deadline.
    colluders clients of the cohort that may be the server's own: as many robbed ones this process puts up with.
    """

    gateway: Transport
    tally: FleetStats
    limits: Limits = Limits()
    silent: bool = False
    colluders: int = 0
    _robbed: set[int] = field(default_factory=set, init=False)

    @property
    def conflicts_exceeded(self) -> bool:
        """Return True when another party plays more of the cohort's clients than its noise can do without."""
        return len(self._robbed) > self.colluders

    async def send(self, cohort: Cohort, stage: AnyStage, part: Sequence[Item]) -> set[int]:
        """Slots whose message was refused; all others are committed at S. Raises what S answers to the whole upload.

        part  messages within the limits. Raises BadMessage when S refuses what was not in it, or anything twice.
        """
        answer = await self.gateway.upload(cohort, Upload(cohort=cohort.cohort, stage=stage, items=list(part)))
        slots = [one.slot for one in answer.refused]
        if answer.reasons is not None:
            raise BadMessage(f"cohort {cohort.cohort}: of stage {stage} not all refusals are listed")
        if len(set(slots)) < len(slots) or not {item.slot for item in part}.issuperset(slots):
            raise BadMessage(f"cohort {cohort.cohort}: the refusals do not belong to the messages of stage {stage}")
        lost = self._lost(cohort, stage, answer.refused)
        taken = [item for item in part if item.slot not in lost]
        self.tally.message_bytes[stage] += sum(len(item.body) for item in taken)
        self.tally.clients["served"] += len(taken) if stage in {"masked", "report"} else 0
        return lost

    async def agree(self, cohort: Cohort) -> None:
        """Compare the cohort at S with the one that users agreed to. Raise Refused, with the field, where they differ.

        What S does with messages, and from how many of them on, is what the guarantee of the cohort rests on.
        """
        told = await self.gateway.terms(cohort)
        found = differing_field(cohort, told)
        if found is not None:
            field_, own, other = found
            known = f"cohort {cohort.cohort}: the {cohort.via} was told {field_} = {other!r}"
            raise Refused(f"{known}, and its clients {own!r}")

    async def key_hashes(self, cohort: Cohort) -> dict[int, bytes]:
        """Slot to the hash of its client's keys, as the server lists them. Raises BadMessage for a ragged list."""
        hashes = (await self.gateway.key_hashes(cohort)).hashes
        if len(hashes) % KEY_HASH or len(hashes) > KEY_HASH * cohort.clients:
            raise BadMessage(f"cohort {cohort.cohort}: the server's list of key hashes has {len(hashes)} bytes")
        return {slot: hashes[KEY_HASH * slot : KEY_HASH * (slot + 1)] for slot in range(len(hashes) // KEY_HASH)}

    async def statement(self, cohort: Cohort, stage: str) -> bytes:
        """The server's digest of what the aggregator said as this stage opened; waits until there is one.

        Raises Aborted when the cohort ends without it.
        """
        after = 0
        while True:
            found = await self.gateway.statements(cohort, after, LONG_POLL)
            for statement in found.statements:
                if statement.stage == stage:
                    return statement.digest
            if found.over:
                raise Aborted(f"cohort {cohort.cohort} ended without a statement of stage {stage}")
            after += len(found.statements)

    async def ask(self, cohort: Cohort, users: Sequence[User]) -> dict[int, int]:
        """Slot to play, of those whom S tells. Raises Refused when S knows another cohort than they agreed to.

        Nobody asks any more in a cohort with more conflicts than may be.
        """
        plays: dict[int, int] = {}
        for start in range(0, len(users), self.limits.items):
            if self.conflicts_exceeded:
                self.tally.clients["refused"] += len(users) - start
                break
            asking = users[start : start + self.limits.items]
            slots, tickets = [user.slot for user in asking], b"".join(user.ticket for user in asking)
            claims = b"".join(user.claim(cohort) for user in asking)
            request = ActionRequest(cohort=cohort.cohort, slots=slots, tickets=tickets, claims=claims)
            answer = await self.gateway.actions(cohort, request)
            if answer.digest != cohort_digest(cohort):
                await self.agree(cohort)  # names the field
                raise Refused(f"the {cohort.via} deals the actions of another cohort {cohort.cohort}")
            plays |= _told(cohort, slots, answer)
            self._lost(cohort, "actions", answer.refused)
        return plays

    async def announce(self, cohort: Cohort, users: Iterable[User]) -> None:
        """Tell S that these users leave, unless they are to vanish silently. A courtesy: S may refuse."""
        gone = list(users)
        if not gone or self.silent:
            return
        try:
            for start in range(0, len(gone), self.limits.items):
                await self._depart(cohort, gone[start : start + self.limits.items])
        except Unavailable:
            raise
        except ProtocolError as error:
            log.info("cohort_left_unheard", cohort=cohort.cohort, clients=len(gone), code=error.code)

    async def _depart(self, cohort: Cohort, part: Sequence[User]) -> None:
        slots, tickets = [user.slot for user in part], b"".join(user.ticket for user in part)
        keys = b"".join(user.key_hash for user in part)
        await self.gateway.depart(cohort, Departure(cohort=cohort.cohort, slots=slots, tickets=tickets, keys=keys))

    def _lost(self, cohort: Cohort, stage: str, refused: Sequence[RefusedItem]) -> set[int]:
        before = self.conflicts_exceeded
        for one in refused:
            robbed = one.type == Conflict("").urn
            say = log.error if robbed else log.warning
            say(
                "ticket_conflict" if robbed else "message_refused",
                cohort=cohort.cohort,
                stage=stage,
                slot=one.slot,
                why=one.detail,
            )
            self.tally.refuse(1, f"{one.type.rpartition(':')[2]}: {one.detail}", "robbed" if robbed else "refused")
            self._robbed.update([one.slot] if robbed else [])
        if self.conflicts_exceeded and not before:
            log.error("conflicts_exceeded", cohort=cohort.cohort, robbed=len(self._robbed), colluders=self.colluders)
        return {one.slot for one in refused}


def _told(cohort: Cohort, asked: Sequence[int], answer: ActionAnswer) -> dict[int, int]:
    answered = [*answer.slots, *(refused.slot for refused in answer.refused)]
    if len(answer.plays) != len(answer.slots) or sorted(answered) != sorted(asked):
        raise BadMessage(f"cohort {cohort.cohort}: the plays do not belong to the slots that asked")
    if any(play >= cohort.clients for play in answer.plays):
        raise BadMessage(f"cohort {cohort.cohort}: a play that is not in the list")
    return dict(zip(answer.slots, answer.plays, strict=True))
