"""What a client checks before it sends: that it computes the same round, and that it wants to take part."""
