"""Errors of the papers, a row each, with counter-examples that are computed on demand."""
