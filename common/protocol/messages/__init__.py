"""Defines the messages between the parties, hop by hop: closed, frozen, versioned. Bodies are packed elsewhere."""
