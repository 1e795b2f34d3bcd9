"""The aggregator: the intermediary that adds masked vectors modulo m and sees none of them in clear."""
