"""What mechanisms of one noise share."""
