"""Exact laws of noise on the integers: probabilities, quantiles and samplers. One distribution a file."""

from common.noise.binomial import Binomial
from common.noise.discrete_gaussian import DiscreteGaussian
from common.noise.discrete_gaussian_sum import DiscreteGaussianSum
from common.noise.discrete_laplace import DiscreteLaplace
from common.noise.law import Law, Pmf
from common.noise.poisson import Poisson
from common.noise.polya import Polya
from common.noise.polya_difference import PolyaDifference
from common.noise.skellam import Skellam
from common.noise.table import Table

__all__ = [
    "Binomial",
    "DiscreteGaussian",
    "DiscreteGaussianSum",
    "DiscreteLaplace",
    "Law",
    "Pmf",
    "Poisson",
    "Polya",
    "PolyaDifference",
    "Skellam",
    "Table",
]
