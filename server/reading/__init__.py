"""What is shown of runs: their state, rounds, costs, events and transcripts. Nothing here changes a run."""
