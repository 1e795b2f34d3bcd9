"""S → its operator: which cohorts it knows, and where each stands."""

from typing import Literal

from distrust.common.messages.base import Identifier, Message, Version


class CohortEntry(Message):
    """One cohort in one line. `answered`: the clients whose message of the open stage is here; absent in every end."""

    cohort: Identifier
    run: Identifier
    round: int
    clients: int
    stage: Literal["keys", "shares", "masked", "unmask", "report", "done", "aborted"]
    answered: int | None = None


class CohortList(Message):
    """Cohorts, oldest first."""

    version: Version = 1
    cohorts: list[CohortEntry]
