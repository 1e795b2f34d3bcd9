"""What both S have in common: cohorts, slots, tickets, stages with deadlines, one batch. No HTTP, and no mixing."""
