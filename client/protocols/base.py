"""What the clients of a cohort say, stage by stage. Two scripts: `reporting` and `masking`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from distrust.client.fleet.user import AnyStage, User
from distrust.common.messages.status import StageView
from distrust.common.messages.upload import Item

Check = bytes | Mapping[int, bytes]
"""What the server published for a stage: the digest of the aggregator's statement, or in `shares` the key hashes."""


class ClientProtocol(Protocol):
    """The messages of one cohort's users in this process. No I/O; every call may take a while of CPU."""

    @property
    def first(self) -> AnyStage:
        """The stage that users answer as soon as they have their tickets."""
        ...

    @property
    def refusals(self) -> Mapping[int, str]:
        """Why users left a stage unanswered, by slot."""
        ...

    @property
    def last(self) -> AnyStage:
        """The stage after which nothing more is asked of them."""
        ...

    def deal(self, plays: Mapping[int, int]) -> None:
        """Slot to play, where S deals the actions."""
        ...

    def begin(self, users: Sequence[User]) -> list[Item]:
        """The users' messages for the first stage."""
        ...

    def answer(self, users: Sequence[User], view: StageView, check: Check) -> list[Item]:
        """The messages for the stage that `view` shows, of those among `users` that take part in it."""
        ...

    def forget(self, slots: Iterable[int]) -> None:
        """Erase what these users still hold: they are done, lost or refused."""
        ...
