"""Code that the parties share. It imports no party."""
