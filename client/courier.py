"""Bulk uploads cut to size, refusals read, departures announced."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from client.gateway import Gateway
from client.tally import Tally
from client.user import AnyStage, User
from common.errors import BadMessage, Conflict, ProtocolError, Refused, Unavailable
from common.messages.cohort import Cohort
from common.messages.deal import ActionAnswer, ActionRequest
from common.messages.upload import Departure, Item, RefusedItem, Upload

log = structlog.get_logger("distrust.fleet")

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
class Courier:
    """Takes messages to S, and says which clients are out of it.

    A conflict means that somebody else was there with the client's ticket: a repeat of its own words is no conflict,
    and only the server could have signed the ticket twice. Such clients are `robbed`: they leave, and it is an error.

    silent    simulated clients vanish without a word, and S waits for its deadline.
    colluders clients of the cohort that may be the server's own: as many robbed ones this process puts up with.
    """

    gateway: Gateway
    tally: Tally
    limits: Limits = Limits()
    silent: bool = False
    colluders: int = 0
    _robbed: set[int] = field(default_factory=set, init=False)

    @property
    def overrun(self) -> bool:
        """Whether somebody else plays more of the cohort's clients than its noise can do without."""
        return len(self._robbed) > self.colluders

    async def send(self, cohort: Cohort, stage: AnyStage, part: Sequence[Item]) -> set[int]:
        """Slots whose message was refused; all others are committed at S. Raises what S answers to the whole upload.

        part  messages within the limits. Raises BadMessage when S refuses what was not in it, or anything twice.
        """
        answer = await self.gateway.upload(cohort, Upload(cohort=cohort.cohort, stage=stage, items=list(part)))
        slots = [one.slot for one in answer.refused]
        if len(set(slots)) < len(slots) or not {item.slot for item in part}.issuperset(slots):
            raise BadMessage(f"cohort {cohort.cohort}: the refusals do not belong to the messages of stage {stage}")
        lost = self._lost(cohort, stage, answer.refused)
        taken = [item for item in part if item.slot not in lost]
        self.tally.message_bytes[stage] += sum(len(item.body) for item in taken)
        self.tally.clients["served"] += len(taken) if stage in {"masked", "report"} else 0
        return lost

    async def agree(self, cohort: Cohort) -> None:
        """Compare what S was told with what users agreed to. Raises Refused unless it is the same cohort."""
        told = await self.gateway.terms(cohort)
        if told.minimum != cohort.minimum:
            known = f"the {cohort.via} releases cohort {cohort.cohort} from {told.minimum} clients on"
            raise Refused(f"{known}, and its users were promised {cohort.minimum}")
        _same(cohort, told.digest())

    async def ask(self, cohort: Cohort, users: Sequence[User]) -> dict[int, int]:
        """Slot to play, of those whom S tells. Raises Refused when S knows another cohort than they agreed to.

        Nobody asks any more in a cohort that is overrun.
        """
        plays: dict[int, int] = {}
        for start in range(0, len(users), self.limits.items):
            if self.overrun:
                self.tally.clients["refused"] += len(users) - start
                break
            asking = users[start : start + self.limits.items]
            slots, tickets = [user.slot for user in asking], b"".join(user.ticket for user in asking)
            claims = b"".join(user.claim(cohort) for user in asking)
            request = ActionRequest(cohort=cohort.cohort, slots=slots, tickets=tickets, claims=claims)
            answer = await self.gateway.actions(cohort, request)
            plays |= _told(cohort, slots, answer)
            self._lost(cohort, "actions", answer.refused)
        return plays

    async def announce(self, cohort: Cohort, users: Iterable[User]) -> None:
        """Tell S that these users leave, unless they are to vanish silently. A courtesy: S may refuse."""
        gone = list(users)
        if not gone or self.silent:
            return
        slots, tickets = [user.slot for user in gone], b"".join(user.ticket for user in gone)
        try:
            await self.gateway.depart(cohort, Departure(cohort=cohort.cohort, slots=slots, tickets=tickets))
        except Unavailable:
            raise
        except ProtocolError as error:
            log.info("left unheard", cohort=cohort.cohort, clients=len(gone), code=error.code)

    def _lost(self, cohort: Cohort, stage: str, refused: Sequence[RefusedItem]) -> set[int]:
        before = self.overrun
        for one in refused:
            robbed = one.type == Conflict("").urn
            say = log.error if robbed else log.warning
            say("robbed" if robbed else "refused", cohort=cohort.cohort, stage=stage, slot=one.slot, why=one.detail)
            self.tally.clients["robbed" if robbed else "refused"] += 1
            self._robbed.update([one.slot] if robbed else [])
        if self.overrun and not before:
            log.error("overrun", cohort=cohort.cohort, robbed=len(self._robbed), colluders=self.colluders)
        return {one.slot for one in refused}


def _told(cohort: Cohort, asked: Sequence[int], answer: ActionAnswer) -> dict[int, int]:
    _same(cohort, answer.digest)
    answered = [*answer.slots, *(refused.slot for refused in answer.refused)]
    if len(answer.plays) != len(answer.slots) or sorted(answered) != sorted(asked):
        raise BadMessage(f"cohort {cohort.cohort}: the plays do not belong to the slots that asked")
    if any(play >= cohort.clients for play in answer.plays):
        raise BadMessage(f"cohort {cohort.cohort}: a play that is not in the list")
    return dict(zip(answer.slots, answer.plays, strict=True))


def _same(cohort: Cohort, digest: bytes) -> None:
    """What S does with messages, and from how many of them on, is what the guarantee of this cohort rests on."""
    if digest != cohort.digest():
        raise Refused(f"the {cohort.via} knows another cohort {cohort.cohort} than this round's")
