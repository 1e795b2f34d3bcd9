"""Checks, before a client sends, that it computes the same round and that it wants to take part."""
