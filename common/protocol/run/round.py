"""Defines the open round's request, from server to clients. It is public."""

import json
from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from distrust.common.bandit.decisions import Decision
from distrust.common.bandit.statistics import Statistic
from distrust.common.dp.mechanisms import AnyMechanism
from distrust.common.protocol.channels import channel_of
from distrust.common.protocol.channels.base import Channel, ChannelTerms
from distrust.common.protocol.crypto.parameters import neighbourhood
from distrust.common.protocol.messages.cohort import Cohort, Grant
from distrust.common.protocol.run.config import RunConfig
from distrust.common.wire import WIRE, Blob, Identifier, Message, Version


class Assignment(Message):
    """A cohort, and its own arm and mechanism in the round.

    arm        the arm that its clients play; absent when the decision names the actions.
    mechanism  where the cohorts of a round differ in size; absent: the round's.
    """

    arm: Annotated[int, Field(ge=0)] | None = None
    cohort: Cohort
    mechanism: AnyMechanism | None = None


class Round(Message):
    """One round: decision rule + statistic + mechanism + cohorts. Public.

    dropout, corrupt   the rates that the neighbour graph's k and t are computed from; clients compute them again.
    """

    version: Version = WIRE
    run: Identifier
    number: Annotated[int, Field(ge=1)]
    decision: Decision
    statistic: Statistic
    mechanism: AnyMechanism
    dropout: Annotated[float, Field(ge=0, lt=0.5)]
    corrupt: Annotated[float, Field(ge=0, lt=0.5)]
    assignments: list[Assignment]

    def mechanism_of(self, assignment: Assignment) -> AnyMechanism:
        """Return the mechanism that randomizes the reports of this cohort."""
        return assignment.mechanism or self.mechanism


def cohort_terms(round_: Round, arm: int | None, mechanism: AnyMechanism) -> str:
    """Return a round's request to one cohort's clients as canonical JSON: `Cohort.terms`.

    The server writes it, the intermediary stores it, and each client writes it again from the round that it received.
    """
    fields = ("run", "number", "decision", "statistic", "dropout", "corrupt")
    public = round_.model_dump(mode="json", include=set(fields))
    whole = {**public, "arm": arm, "mechanism": mechanism.model_dump(mode="json")}
    return json.dumps(whole, sort_keys=True, separators=(",", ":"), allow_nan=False)


def cohort_channel(
    config: RunConfig, round_: Round, mechanism: AnyMechanism, minimum: int, server_key: bytes
) -> Channel:
    """Return how the messages of a cohort travel. Server and clients compute it from the same.

    minimum     survivors of the cohort below which nothing is released.
    server_key  the raw X25519 public key that records are sealed to.
    Raises      BadParameter where no channel carries the mechanism's messages, and for rates that no threshold serves.
    """
    graph = partial(neighbourhood, mechanism.clients, round_.dropout, round_.corrupt, minimum)
    seed = None if config.unsafe is None else config.unsafe.noise_seed
    facts = mechanism.via, mechanism.modulus, mechanism.dimension, mechanism.width, mechanism.receipted
    return channel_of(ChannelTerms(*facts, round_.decision, graph, server_key, seed))


class RoundView(Message):
    """The answer to GET /round: the open round, or that there will be none.

    config  digest of the run's configuration, 32 bytes.
    run_id  the run's id, 16 random bytes; both together give R, which the run's cohorts carry.
    """

    version: Version = WIRE
    run: Identifier
    state: Literal["open", "between", "finished", "cancelled", "failed"]
    config: Blob
    run_id: Blob
    round: Round | None = None


class TicketAnswer(Message):
    """The granted slots; empty while none is free.

    view  the round that is open now, or the run's end; only for a request that names no round. The slots are of this
          round, unless the request is repeated after their cohort has ended.
    """

    version: Version = WIRE
    grants: list[Grant]
    view: Annotated[RoundView | None, Field(exclude_if=lambda value: value is None)] = None
