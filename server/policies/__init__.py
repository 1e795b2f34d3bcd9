"""What to ask next, one policy a file. A policy sees estimates and the laws of their errors, never a mechanism."""
