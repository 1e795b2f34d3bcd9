"""The aggregator's script: four stages of secure aggregation, every user with keys and state of its own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import structlog

from client.randomizer import Randomizer
from client.secagg import MaskingClient
from client.user import User
from common.crypto.graph import Roster
from common.errors import BadMessage, ProtocolError
from common.messages.stage import StageView
from common.messages.upload import Item

log = structlog.get_logger("distrust.fleet")


class Masking:
    """Masked inputs of one cohort's users. The roster, which is public, is read once for all of them."""

    first: Literal["keys"] = "keys"
    last: Literal["unmask"] = "unmask"

    def __init__(self, randomizer: Randomizer, floor: int) -> None:
        self._randomizer = randomizer
        self._cohort = randomizer.assignment.cohort
        self._floor = max(floor, randomizer.mechanism.floor)
        self._clients: dict[int, MaskingClient] = {}
        self._roster: Roster | None = None

    def deal(self, plays: Mapping[int, int]) -> None:
        """The aggregator deals no actions. Raises BadMessage."""
        self._randomizer.deal(plays)

    def begin(self, users: Sequence[User]) -> list[Item]:
        """Fresh keys for every user."""
        rates = {"dropout": self._randomizer.round.dropout, "corrupt": self._randomizer.round.corrupt}
        for user in users:
            self._clients[user.slot] = MaskingClient(self._cohort, user.slot, floor=self._floor, **rates)
        return [user.item(self._clients[user.slot].keys()) for user in users]

    def answer(self, users: Sequence[User], view: StageView) -> list[Item]:
        """A user that refuses, because the aggregator's word does not add up for it, is left out and logged."""
        match view.stage:
            case "shares":
                roster = self._read_roster(view)
                return self._each(users, lambda _user, client: client.shares(roster))
            case "masked":
                return self._masked(users, view)
            case "unmask":
                return self._each(users, lambda _user, client: client.unmask(view.members))
        raise BadMessage(f"cohort {self._cohort.cohort}: nothing is to be said at stage {view.stage}")

    def forget(self, slots: Iterable[int]) -> None:
        """Keys, seeds and shares of these users are gone."""
        for slot in slots:
            self._clients.pop(slot, None)

    def _masked(self, users: Sequence[User], view: StageView) -> list[Item]:
        boxes = {inbox.slot: inbox.body for inbox in view.inboxes or []}
        present = [user for user in users if user.slot in boxes]
        slots = [user.slot for user in present]
        rows = dict(zip(slots, self._randomizer.rows(slots), strict=True))
        return self._each(present, lambda user, client: client.masked(rows[user.slot], view.members, boxes[user.slot]))

    def _each(self, users: Sequence[User], say: Callable[[User, MaskingClient], bytes]) -> list[Item]:
        items = []
        for user in users:
            try:
                items.append(user.item(say(user, self._clients[user.slot])))
            except ProtocolError as error:
                log.warning("refuses", cohort=self._cohort.cohort, slot=user.slot, code=error.code, why=error.detail)
        return items

    def _read_roster(self, view: StageView) -> Roster:
        if self._roster is None:
            if view.roster is None:
                raise BadMessage(f"cohort {self._cohort.cohort}: the stage view has no roster")
            self._roster = Roster(self._cohort, view.members, view.roster)
        return self._roster
