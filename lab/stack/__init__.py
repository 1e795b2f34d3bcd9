"""The local stack: the three services on loopback."""
