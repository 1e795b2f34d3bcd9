"""The vocabulary of bandits: actions, decisions, statistics."""
