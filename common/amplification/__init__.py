"""Privacy amplification by shuffling, computed: for any pure local randomizer, and for given ones."""

from common.amplification.blanket import blanket_delta, blanket_epsilon, blanket_meets, least_noise
from common.amplification.clones import clones_delta, clones_epsilon, clones_local_epsilon
from common.amplification.closed_form import gaussian_noise, gaussian_promise, paper_epsilon, paper_local_epsilon
from common.amplification.randomizer import Randomizer
from common.amplification.randomizers import added_noise, gaussian, laplace, laplace_on_grid, table
from common.amplification.renyi import blanket_renyi, clones_renyi, concentrated_renyi, curve_renyi

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
