"""The lab stands over all the parties: runs in one process, a local stack, the `distrust` command."""
