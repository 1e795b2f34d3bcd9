"""Tests that a masked vector looks uniform to the aggregator, and that no pad is used twice."""

import numpy as np
from scipy.stats import chi2

from distrust.common.modular import unpack
from distrust.common.protocol.crypto.keys import Binding
from distrust.common.protocol.messages.cohort import Cohort
from distrust.lab.secagg_simulation import enrol, make_cohort

N, M = 24, 1009
EVERYONE = range(N)
ONE = np.array([1], dtype=np.uint64)


def test_a_masked_vector_looks_uniform_whatever_it_hides() -> None:
    """Chi-square over the 50 values of Z_50, 12,000 coordinates of zero; false alarm 1e-7."""
    simulation = enrol(make_cohort(4, 50, 12_000))
    simulation.send_keys(range(4))
    simulation.send_shares(range(4))
    simulation.send_confirm(range(4))
    simulation.send_masked(range(4), np.zeros((4, 12_000), dtype=np.uint64))
    for body in simulation.masked.values():
        counts = np.bincount(unpack(body, 50, 12_000).astype(np.int64), minlength=50)
        assert float(((counts - 240.0) ** 2 / 240).sum()) < chi2.isf(1e-7, 49)


def test_no_pad_is_used_twice() -> None:
    """Ten clients of two cohorts hide the same vector: no two of 60 bits agree (false alarm 4e-17)."""
    bodies = set()
    for name in ("c", "d"):
        simulation = enrol(make_cohort(5, 2**60, 1, name=name))
        simulation.send_keys(range(5))
        simulation.send_shares(range(5))
        simulation.send_confirm(range(5))
        simulation.send_masked(range(5), np.zeros((5, 1), dtype=np.uint64))
        bodies |= set(simulation.masked.values())
    assert len(bodies) == 10


def test_a_mask_key_is_bound_to_everything_that_could_repeat() -> None:
    """A key depends on configuration, run, round, cohort, slots, its use, dimension, modulus, minimum and terms."""
    cohort = make_cohort(N, M, 1)
    seed, keys = bytes(16), set()
    changes: list[Cohort] = [
        cohort,
        *(
            cohort.model_copy(update=u)
            for u in ({"run_digest": b"\1" * 32}, {"run": "s"}, {"round": 2}, {"cohort": "d"})
        ),
        *(cohort.model_copy(update=u) for u in ({"minimum": 21}, {"terms": '{"mechanism":{"precision":9000}}'})),
        *(cohort.model_copy(update={"channel": make_cohort(N, m, d).channel}) for m, d in ((M, 2), (M + 1, 1))),
    ]
    alice, bob = (enrol(cohort).clients[0]._secrets for _ in range(2))
    assert alice is not None
    assert bob is not None
    pair = alice.mask_pair
    assert pair is not None
    for variant in changes:
        names = Binding(variant)
        keys |= {bytes(names.self_mask(seed, slot)) for slot in (1, 2)}
        keys |= {bytes(names.pair_mask(pair, bob.public[:32], 1, other)) for other in (2, 3)}
        keys.add(bytes(names.channel(pair, bob.public[:32], 1, 2)))
    assert len(keys) == 5 * len(changes)
