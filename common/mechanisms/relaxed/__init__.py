"""Pure privacy by shuffling bits: MAB Theorem 3's relaxed secure aggregation, built so that it can be certified."""

from common.mechanisms.relaxed.certificate import certified_epsilon, pair_epsilon
from common.mechanisms.relaxed.design import Design
from common.mechanisms.relaxed.mechanism import RelaxedSecaggShuffle, plan_relaxed
from common.mechanisms.relaxed.search import fewest_bits

__all__ = ["Design", "RelaxedSecaggShuffle", "certified_epsilon", "fewest_bits", "pair_epsilon", "plan_relaxed"]
