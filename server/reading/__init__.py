"""Shows runs: their state, rounds, costs, events and transcripts. It changes no run."""
