"""Mechanisms whose noise the server draws."""
