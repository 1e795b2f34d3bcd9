"""Exact laws of noise on the integers: probabilities, quantiles and samplers. One distribution a file."""

from distrust.common.noise.binomial import Binomial
from distrust.common.noise.discrete_gaussian import DiscreteGaussian
from distrust.common.noise.discrete_gaussian_sum import DiscreteGaussianSum
from distrust.common.noise.discrete_laplace import DiscreteLaplace
from distrust.common.noise.law import Law, Pmf
from distrust.common.noise.poisson import Poisson
from distrust.common.noise.polya import Polya
from distrust.common.noise.polya_difference import PolyaDifference
from distrust.common.noise.skellam import Skellam
from distrust.common.noise.table import Table

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
