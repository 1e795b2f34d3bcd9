"""Common logic of shuffler and aggregator: cohorts, slots, tickets, stages with deadlines, one batch. No HTTP."""
