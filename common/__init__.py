"""What the parties share. This room imports no party."""
