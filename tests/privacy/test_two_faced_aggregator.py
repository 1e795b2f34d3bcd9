"""What an aggregator gets that calls a client lost to some neighbours, and alive to others (rules 4 and 5)."""

import numpy as np
import pytest

from common.crypto.share import SHARE, combine
from common.errors import BadShare, Refused
from lab.secagg_simulation import Simulation, enrol, make_cohort

N, VICTIM = 24, 7
OTHERS = [slot for slot in range(N) if slot != VICTIM]


@pytest.fixture
def masked() -> Simulation:
    """Everybody has sent a masked vector, the victim too; k = 23, t = 12."""
    simulation = enrol(make_cohort(N, 1009, 1))
    simulation.send_keys(range(N))
    simulation.send_shares(range(N))
    simulation.send_masked(range(N), np.ones((N, 1), dtype=np.uint64))
    return simulation


def share_of_victim(simulation: Simulation, slot: int, answer: bytes) -> bytes:
    at = SHARE * simulation.roster.neighbours(slot).index(VICTIM)
    return answer[at : at + SHARE]


@pytest.mark.parametrize("told_lost", [1, 11, 12, 22])
def test_no_lie_to_some_of_the_neighbours_opens_both_secrets_of_one_client(masked: Simulation, told_lost: int) -> None:
    """t = 12 of 23 neighbours: whichever way they are divided, one of the two secrets stays below t."""
    alive, lost = masked.bitmap(range(N)), masked.bitmap(OTHERS)
    kinds: dict[str, list[tuple[int, bytes]]] = {"lost": [], "alive": []}
    for place, slot in enumerate(OTHERS):
        lie = place < told_lost
        answer = masked.clients[slot].unmask(lost if lie else alive)
        kinds["lost" if lie else "alive"].append((place + 1, share_of_victim(masked, slot, answer)))
    assert min(len(found) for found in kinds.values()) < 12
    few = min(kinds.values(), key=len)
    secrets = masked.clients[VICTIM]._secrets
    assert secrets is not None
    try:
        rebuilt = combine(tuple(point for point, _ in few), [share for _, share in few])
    except BadShare:
        return
    assert rebuilt not in {secrets.self_seed, secrets.mask_seed}


def test_whoever_was_told_one_story_never_answers_to_the_other(masked: Simulation) -> None:
    for slot in OTHERS:
        masked.clients[slot].unmask(masked.bitmap(OTHERS))
        with pytest.raises(Refused):
            masked.clients[slot].unmask(masked.bitmap(range(N)))


def test_a_client_that_is_called_lost_to_its_face_says_nothing(masked: Simulation) -> None:
    with pytest.raises(Refused, match=f"lack slot {VICTIM}"):
        masked.clients[VICTIM].unmask(masked.bitmap(OTHERS))


def test_a_sum_over_few_is_not_opened_whoever_is_called_lost(masked: Simulation) -> None:
    """Three called lost, although they answered: below the minimum of 22."""
    few = masked.bitmap(OTHERS[:21])
    for slot in OTHERS[:21]:
        with pytest.raises(Refused, match=r"21 survivors, and slot \d+ insists on 22"):
            masked.clients[slot].unmask(few)
