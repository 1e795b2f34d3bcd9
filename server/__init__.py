"""The server: plans rounds, issues tickets and analyzes batches. It never learns which client sent what."""
