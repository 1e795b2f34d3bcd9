"""What mechanisms have in common: the base class, noise on the grid, Gaussian and Laplace families."""
