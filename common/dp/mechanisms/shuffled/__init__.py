"""Mechanisms whose promise needs the shuffler."""
