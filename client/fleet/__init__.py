"""Many clients in one process: what a fleet needs, whom it trusts with what, and what it remembers on the disk."""
