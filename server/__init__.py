"""A and the learner: plans rounds, hands out tickets, analyzes what S releases. It never sees who sent what."""
