"""What shuffler and aggregator have in common: cohorts, slots, tickets, stages with deadlines, one batch. No HTTP."""
