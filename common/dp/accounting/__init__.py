"""Accounting: guarantees, composition, exact divergences of released laws, and the least noise for a promise."""
