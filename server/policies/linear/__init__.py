"""Policies for linear bandits."""
