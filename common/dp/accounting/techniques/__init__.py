"""Bounds and searches that the laws share: hockey-stick divergence, products, vectors, amplification."""
