"""Defines the base class of mechanisms, noise on the grid, and the Gaussian and Laplace families."""
