"""Makes the messages that the clients of a cohort send, stage by stage. No I/O.

`ClientProtocol` has two kinds. `ShuffleProtocol` sends one report a client to the shuffler, and in a crowd tells the
server afterwards whether it arrived. `SecAggProtocol` answers the aggregator's five stages of secure aggregation.

Both have the same methods. `begin` and `answer` return messages, and may take seconds of CPU. `refusals` tells by slot
why a user did not answer a stage. `forget` drops the secrets of users that are done, lost or refused. The session never
calls it while their messages are made.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Literal

import numpy as np
import structlog
from numpy.typing import NDArray

from distrust.client.cohort.randomizer import CohortRandomizer
from distrust.client.cohort.secagg import MaskingClient
from distrust.client.cohort.user import AnyStage, User
from distrust.common.errors import BadMessage, ProtocolError
from distrust.common.protocol.crypto.graph import Roster
from distrust.common.protocol.crypto.receipts import record_hash
from distrust.common.protocol.crypto.seal import seal
from distrust.common.protocol.messages.status import StageView
from distrust.common.protocol.messages.upload import Item

log = structlog.get_logger("distrust.fleet")

Check = bytes | Mapping[int, bytes]
"""The server's publication for a stage: the digest of the aggregator's statement, or in `shares` the key hashes."""


class ShuffleProtocol:
    """Reports of one cohort's users, as its channel has them."""

    first: Literal["report"] = "report"

    def __init__(self, randomizer: CohortRandomizer) -> None:
        self._randomizer = randomizer
        self.last: AnyStage = "receipt" if randomizer.assignment.cohort.receipts else "report"
        self._records: dict[int, bytes] = {}  # by slot, of clients that give receipts: the hash of their sealed record
        self.refusals: dict[int, str] = {}  # always empty: a report is sent, or its cohort was refused

    def assign(self, positions: Mapping[int, int]) -> None:
        """Note the position of each slot."""
        self._randomizer.assign(positions)

    def begin(self, users: Sequence[User]) -> list[Item]:
        """Return the reports. Each call draws new noise: that none comes for a slot twice is the fleet's memory's work.

        An upload that is sent again has the same bytes.
        """
        rows = self._randomizer.rows([user.slot for user in users])
        return [user.item(self._body(user, row)) for user, row in zip(users, rows, strict=True)]

    def answer(self, users: Sequence[User], view: StageView, check: Check) -> list[Item]:
        """Return no items: a report is the only message to the shuffler."""
        del users, view, check
        return []

    def found(self, users: Iterable[User], listed: AbstractSet[bytes]) -> dict[int, bool]:
        """Return by slot whether a user's record is in the server's list."""
        return {user.slot: self._records[user.slot] in listed for user in users}

    def forget(self, users: Iterable[User]) -> None:
        """Forget these users' records: they have given their receipt, or give none."""
        for user in users:
            self._records.pop(user.slot, None)

    def _body(self, user: User, row: NDArray[np.uint64]) -> bytes:
        cohort = self._randomizer.assignment.cohort
        place = self._randomizer.place(user.slot)
        sealer = partial(seal, cohort.channel.sealed_to, cohort, place=place)
        report = cohort.channel.report(row, self._randomizer.mechanism.modulus, sealer, user.secret)
        if cohort.receipts:
            self._records[user.slot] = record_hash(cohort, cohort.channel.record(report), place)
        return report


class SecAggProtocol:
    """Secure aggregation of one cohort's users. The roster, which is public, is read once for all of them.

    min_survivors  that the users insist on. They also insist on those that the mechanism's noise counts on.
    """

    first: Literal["keys"] = "keys"
    last: Literal["unmask"] = "unmask"

    def __init__(self, randomizer: CohortRandomizer, min_survivors: int) -> None:
        self._randomizer = randomizer
        self._cohort = randomizer.assignment.cohort
        self._min_survivors = max(min_survivors, randomizer.mechanism.floor)
        self._clients: dict[int, MaskingClient] = {}
        self._roster: Roster | None = None
        self.refusals: dict[int, str] = {}

    def assign(self, positions: Mapping[int, int]) -> None:
        """Raise BadMessage: the aggregator assigns no actions."""
        self._randomizer.assign(positions)

    def begin(self, users: Sequence[User]) -> list[Item]:
        """Return every user's keys: those whose hash went to the server with its ticket request."""
        rates = {"dropout": self._randomizer.round.dropout, "corrupt": self._randomizer.round.corrupt}
        for user in users:
            if user.keys is None:
                raise BadMessage(f"cohort {self._cohort.cohort}: slot {user.slot} has no keys for secure aggregation")
            client = MaskingClient(self._cohort, user.slot, user.keys, min_survivors=self._min_survivors, **rates)
            self._clients[user.slot] = client
        return [user.item(self._clients[user.slot].keys()) for user in users]

    def answer(self, users: Sequence[User], view: StageView, check: Check) -> list[Item]:
        """Return the messages of the stage that the aggregator opened.

        A user that refuses, because the aggregator's view contradicts what it knows, is left out and logged.
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

    def forget(self, users: Iterable[User]) -> None:
        """Wipe keys, seeds and shares of these users, and drop their clients."""
        for user in users:
            client = self._clients.pop(user.slot, None)
            if client is not None:
                client.forget()
            elif user.keys is not None:  # it has left before its first message
                user.keys.wipe()

    def _confirm(self, users: Sequence[User], view: StageView, statement: bytes) -> list[Item]:
        boxes = {inbox.slot: inbox.body for inbox in view.inboxes or []}
        present = [user for user in users if user.slot in boxes]
        request = view.members, view.challenge or b""
        return self._each(present, lambda user, client: client.confirm(*request, boxes[user.slot], statement))

    def _masked(self, users: Sequence[User], view: StageView, statement: bytes) -> list[Item]:
        slots = [user.slot for user in users]
        rows = dict(zip(slots, self._randomizer.rows(slots), strict=True))
        return self._each(users, lambda user, client: client.masked(rows[user.slot], view.members, statement))

    def _each(self, users: Sequence[User], answer: Callable[[User, MaskingClient], bytes]) -> list[Item]:
        items = []
        for user in users:
            try:
                items.append(user.item(answer(user, self._clients[user.slot])))
            except ProtocolError as error:
                log.warning("client_refusal", cohort=self._cohort.cohort, slot=user.slot, why=error.detail)
                self.refusals[user.slot] = f"{error.code}: {error.detail}"
        return items

    def _read_roster(self, view: StageView) -> Roster:
        if self._roster is None:
            if view.roster is None:
                raise BadMessage(f"cohort {self._cohort.cohort}: the stage view has no roster")
            self._roster = Roster(self._cohort, view.members, view.roster)
        return self._roster


ClientProtocol = ShuffleProtocol | SecAggProtocol
"""The messages of one cohort's users in this process."""
