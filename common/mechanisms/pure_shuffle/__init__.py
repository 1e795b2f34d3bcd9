"""Pure privacy by shuffling bits: MAB Theorem 3's relaxed secure aggregation, built so that it can be certified."""

from distrust.common.mechanisms.pure_shuffle.certificate import certified_epsilon, pair_epsilon
from distrust.common.mechanisms.pure_shuffle.design import Design
from distrust.common.mechanisms.pure_shuffle.mechanism import RelaxedSecaggShuffle, plan_relaxed
from distrust.common.mechanisms.pure_shuffle.search import fewest_bits

__all__ = ["Design", "RelaxedSecaggShuffle", "certified_epsilon", "fewest_bits", "pair_epsilon", "plan_relaxed"]
