"""Empirical lower bounds on ε of mechanisms as they are deployed: two worlds, many trials, an exact test."""
