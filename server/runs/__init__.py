"""What moves a run on: tickets, open cohorts, what their intermediaries deliver, outcomes, the run's end."""
