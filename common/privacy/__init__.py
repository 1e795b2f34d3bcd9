"""Accounting: guarantees, composition, and exact divergences of the laws that are released."""
