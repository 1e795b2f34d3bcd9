"""Exact laws of noise on the integers: probabilities, quantiles and samplers."""
