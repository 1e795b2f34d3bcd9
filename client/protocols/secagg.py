"""The aggregator's script: five stages of secure aggregation, every user with keys and state of its own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import structlog

from distrust.client.fleet.user import User
from distrust.client.protocols.base import Check
from distrust.client.randomizer import Randomizer
from distrust.client.secagg.client import MaskingClient
from distrust.common.crypto.graph import Roster
from distrust.common.errors import BadMessage, ProtocolError
from distrust.common.messages.status import StageView
from distrust.common.messages.upload import Item

log = structlog.get_logger("distrust.fleet")


class SecAggProtocol:
    """Masked inputs of one cohort's users. The roster, which is public, is read once for all of them."""

    first: Literal["keys"] = "keys"
    last: Literal["unmask"] = "unmask"

    def __init__(self, randomizer: Randomizer, floor: int) -> None:
        self._randomizer = randomizer
        self._cohort = randomizer.assignment.cohort
        self._floor = max(floor, randomizer.mechanism.floor)
        self._clients: dict[int, MaskingClient] = {}
        self._roster: Roster | None = None
        self.refusals: dict[int, str] = {}

    def deal(self, plays: Mapping[int, int]) -> None:
        """The aggregator deals no actions. Raises BadMessage."""
        self._randomizer.deal(plays)

    def begin(self, users: Sequence[User]) -> list[Item]:
        """Return every user's keys: those whose hash went to the server with its ticket request."""
        rates = {"dropout": self._randomizer.round.dropout, "corrupt": self._randomizer.round.corrupt}
        for user in users:
            if user.keys is None:
                raise BadMessage(f"cohort {self._cohort.cohort}: slot {user.slot} has no keys for secure aggregation")
            client = MaskingClient(self._cohort, user.slot, user.keys, floor=self._floor, **rates)
            self._clients[user.slot] = client
        return [user.item(self._clients[user.slot].keys()) for user in users]

    def answer(self, users: Sequence[User], view: StageView, check: Check) -> list[Item]:
        """Return the messages of the stage that the aggregator opened.

        A user that refuses, because what the aggregator says does not add up for it, is left out and logged.
        """
        if isinstance(check, bytes):
            match view.stage:
                case "confirm":
                    return self._confirm(users, view, check)
                case "masked":
                    return self._masked(users, view, check)
                case "unmask":
                    return self._each(users, lambda _user, client: client.unmask(view.members, check))
        elif view.stage == "shares":
            roster = self._read_roster(view)
            return self._each(users, lambda _user, client: client.shares(roster, check))
        raise BadMessage(f"cohort {self._cohort.cohort}: a client has no answer at stage {view.stage}")

    def forget(self, slots: Iterable[int]) -> None:
        """Keys, seeds and shares of these users are gone."""
        for slot in slots:
            self._clients.pop(slot, None)

    def _confirm(self, users: Sequence[User], view: StageView, statement: bytes) -> list[Item]:
        boxes = {inbox.slot: inbox.body for inbox in view.inboxes or []}
        present = [user for user in users if user.slot in boxes]
        told = view.members, view.challenge or b""
        return self._each(present, lambda user, client: client.confirm(*told, boxes[user.slot], statement))

    def _masked(self, users: Sequence[User], view: StageView, statement: bytes) -> list[Item]:
        slots = [user.slot for user in users]
        rows = dict(zip(slots, self._randomizer.rows(slots), strict=True))
        return self._each(users, lambda user, client: client.masked(rows[user.slot], view.members, statement))

    def _each(self, users: Sequence[User], say: Callable[[User, MaskingClient], bytes]) -> list[Item]:
        items = []
        for user in users:
            try:
                items.append(user.item(say(user, self._clients[user.slot])))
            except ProtocolError as error:
                log.warning("client_refuses", cohort=self._cohort.cohort, slot=user.slot, why=error.detail)
                self.refusals[user.slot] = f"{error.code}: {error.detail}"
        return items

    def _read_roster(self, view: StageView) -> Roster:
        if self._roster is None:
            if view.roster is None:
                raise BadMessage(f"cohort {self._cohort.cohort}: the stage view has no roster")
            self._roster = Roster(self._cohort, view.members, view.roster)
        return self._roster
