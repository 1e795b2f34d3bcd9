"""What travels between the parties, hop by hop: closed, frozen, versioned values. Bodies are packed elsewhere."""
