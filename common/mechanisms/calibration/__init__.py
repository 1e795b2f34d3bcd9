"""Searches for the least noise that keeps a promise, and the bounds that they rest on."""
