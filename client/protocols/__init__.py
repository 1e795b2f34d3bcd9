"""The protocols by which a message leaves a client: sealed reports, secure aggregation."""
