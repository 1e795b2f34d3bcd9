"""A round from its plan to its estimates: the machine that replays a run, and the analyzer. No input or output."""
