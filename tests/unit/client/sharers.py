"""A cohort of masking clients that has shared its keys, for tests of what each of them insists on."""

import numpy as np

from lab.secagg_simulation import Simulation

N, M = 24, 1009
EVERYONE = range(N)
ONE = np.array([1], dtype=np.uint64)


def without(*slots: int) -> list[int]:
    return [slot for slot in EVERYONE if slot not in slots]


def masked(simulation: Simulation, slot: int = 0, members: bytes | None = None, inbox: bytes | None = None) -> bytes:
    return simulation.clients[slot].masked(
        ONE,
        simulation.bitmap(simulation.shared) if members is None else members,
        simulation.inboxes[slot] if inbox is None else inbox,
    )
