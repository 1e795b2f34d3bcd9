"""The learner: the state machine of a run, replayed from its outcomes, without input or output."""
