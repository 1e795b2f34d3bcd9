"""Computes what given laws of noise promise: Laplace, Gaussian and binomial sums, each as a profile of a release."""
