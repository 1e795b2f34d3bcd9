"""The three services on loopback."""
