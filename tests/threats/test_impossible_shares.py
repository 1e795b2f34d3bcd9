"""Tests the table of impossible-sums.md: the share of all residues that the check of sums refuses."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from distrust.common.bandit.statistics import Reward
from distrust.common.dp.mechanisms import AnyMechanism, MechanismSpec, plan
from distrust.common.dp.mechanisms.families.grid import GridMechanism
from distrust.server.learner.analyzer import IMPOSSIBLE, possible

LINES = (Path(__file__).parents[2] / "docs/concepts/privacy/impossible-sums.md").read_text("utf-8").splitlines()
DELTAS = {"distributed-polya": None, "distributed-skellam": 1e-6, "distributed-discrete-gaussian": 1e-6}
CASES = [(name, clients) for name in DELTAS for clients in (100, 1000, 10_000)]
USUAL = 1e-4


@cache
def planned(name: str, clients: int, overflow_probability: float) -> AnyMechanism:
    spec = MechanismSpec(name=name, epsilon=1.0, delta=DELTAS[name])
    least = clients - clients // 10
    return plan(
        spec,
        clients=clients,
        min_survivors=least,
        min_honest=least,
        overflow_probability=overflow_probability,
        statistic=Reward(),
    )


def refused(mechanism: AnyMechanism, survivors: int) -> float:
    """Return the share of all residues that are decoded to an impossible sum."""
    assert isinstance(mechanism, GridMechanism)
    lowest, highest = possible(mechanism, np.array([survivors]))
    residues = np.arange(mechanism.modulus, dtype=np.uint64)
    sums = mechanism._decode(residues, survivors) * mechanism.step + survivors * mechanism.origin
    return float(np.mean((sums < lowest) | (sums > highest)))


def row(name: str, clients: int) -> str:
    shown = [f"`{name}`", f"{clients:,}"]
    for overflow_probability in (USUAL, IMPOSSIBLE):
        mechanism = planned(name, clients, overflow_probability)
        shares = [refused(mechanism, survivors) for survivors in (clients, clients * 99 // 100, clients * 9 // 10)]
        shown += [f"{np.log2(mechanism.modulus):.2f}", str(mechanism.bits), *(f"{share:.1%}" for share in shares)]
    return f"| {' | '.join(shown)} |"


@pytest.mark.parametrize(("name", "clients"), CASES)
def test_the_documented_row_is_what_is_counted(name: str, clients: int) -> None:
    assert row(name, clients) in LINES


@pytest.mark.parametrize("overflow_probability", [USUAL, IMPOSSIBLE])
@pytest.mark.parametrize(("name", "clients"), CASES)
def test_the_check_refuses_no_more_residues_than_vanished_clients_left_room_for(
    name: str, clients: int, overflow_probability: float
) -> None:
    """It refuses no residue if no client vanished, for any overflow probability of the modulus."""
    mechanism = planned(name, clients, overflow_probability)
    for survivors in (clients, clients * 99 // 100, clients * 9 // 10):
        assert refused(mechanism, survivors) <= 1 - survivors / clients
