"""A cohort of masking clients that has shared its keys, for tests of the checks that each client makes."""

from typing import Any

import numpy as np

from distrust.client.cohort.secagg import MaskingClient
from distrust.common.protocol.crypto.context import confirm_statement, masked_statement, unmask_statement
from distrust.lab.secagg_simulation import Simulation, enrol, make_cohort

N, M = 24, 1009
EVERYONE = range(N)
ONE = np.array([1], dtype=np.uint64)


def without(*slots: int) -> list[int]:
    return [slot for slot in EVERYONE if slot not in slots]


def sharing(n: int = N, **rates: Any) -> Simulation:
    """Return a cohort in stage `confirm`."""
    simulation = enrol(make_cohort(n, M, 1), **rates)
    simulation.send_keys(range(n))
    simulation.send_shares(range(n))
    return simulation


class Story:
    """The aggregator's answers to one client, with statements that fit them, as if the server had published these."""

    def __init__(self, simulation: Simulation, slot: int = 0) -> None:
        self.simulation, self.slot = simulation, slot
        self.client: MaskingClient = simulation.clients[slot]
        self.statement = b""

    def confirm(self, shared: bytes | None = None, challenge: bytes | None = None, inbox: bytes | None = None) -> bytes:
        simulation = self.simulation
        shared = simulation.bitmap(simulation.shared) if shared is None else shared
        challenge = simulation.challenge if challenge is None else challenge
        self.statement = confirm_statement(simulation.roster.digest, simulation.roster.cohort, shared, challenge)
        inbox = simulation.inboxes[self.slot] if inbox is None else inbox
        return self.client.confirm(shared, challenge, inbox, self.statement)

    def masked(self, members: bytes | None = None, vector: np.ndarray[Any, np.dtype[np.uint64]] = ONE) -> bytes:
        members = self.simulation.bitmap(self.simulation.shared) if members is None else members
        after_masking = masked_statement(self.statement, self.simulation.cohort, members)
        body = self.client.masked(vector, members, after_masking)
        self.after = after_masking
        return body

    def unmask(self, survivors: bytes | None = None) -> bytes:
        survivors = self.simulation.bitmap(self.simulation.shared) if survivors is None else survivors
        return self.client.unmask(survivors, unmask_statement(self.after, self.simulation.cohort, survivors))


def after_masking(simulation: Simulation, slot: int = 0) -> Story:
    """Return a client that has sent its masked vector, with all clients as members."""
    story = Story(simulation, slot)
    story.confirm()
    story.masked()
    return story
