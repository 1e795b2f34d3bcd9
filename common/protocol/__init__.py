"""Defines what parties say to each other: messages, runs, cryptography, HTTP; and what services store."""
