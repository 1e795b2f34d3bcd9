"""Policies whose clients choose their arms by contexts of their own."""
