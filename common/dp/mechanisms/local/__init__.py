"""Mechanisms whose message is private on its own."""
