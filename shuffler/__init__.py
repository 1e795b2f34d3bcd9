"""The shuffler: the intermediary that holds reports until the cohort is complete, then permutes their bodies."""
