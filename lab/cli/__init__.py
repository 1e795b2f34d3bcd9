"""The `distrust` commands, one a file."""
