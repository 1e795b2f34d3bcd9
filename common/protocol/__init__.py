"""What parties say to each other: messages, runs, cryptography, intermediaries, HTTP, and what services store."""
