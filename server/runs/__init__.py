"""Runs over services: rounds opened, batches fetched, results settled."""
