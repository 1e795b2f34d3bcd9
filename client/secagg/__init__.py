"""One client's part of secure aggregation."""
