"""The wire, one hop a file. Closed, frozen, versioned values; bodies are packed elsewhere."""
