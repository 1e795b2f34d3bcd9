"""Uses all parties: plays runs in one process, starts a local stack, has the `distrust` command."""
