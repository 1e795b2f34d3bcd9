"""Privacy amplification by shuffling, computed: for any pure local randomizer, and for given ones."""

from distrust.common.privacy.amplification.blanket import blanket_delta, blanket_epsilon, blanket_meets, least_noise
from distrust.common.privacy.amplification.clones import clones_delta, clones_epsilon, clones_local_epsilon
from distrust.common.privacy.amplification.closed_form import (
    gaussian_noise,
    gaussian_promise,
    paper_epsilon,
    paper_local_epsilon,
)
from distrust.common.privacy.amplification.randomizers import (
    Randomizer,
    added_noise,
    gaussian,
    laplace,
    laplace_on_grid,
    table,
)
from distrust.common.privacy.amplification.renyi import blanket_renyi, clones_renyi, concentrated_renyi, curve_renyi

__all__ = [
    "Randomizer",
    "added_noise",
    "blanket_delta",
    "blanket_epsilon",
    "blanket_meets",
    "blanket_renyi",
    "clones_delta",
    "clones_epsilon",
    "clones_local_epsilon",
    "clones_renyi",
    "concentrated_renyi",
    "curve_renyi",
    "gaussian",
    "gaussian_noise",
    "gaussian_promise",
    "laplace",
    "laplace_on_grid",
    "least_noise",
    "paper_epsilon",
    "paper_local_epsilon",
    "table",
]
