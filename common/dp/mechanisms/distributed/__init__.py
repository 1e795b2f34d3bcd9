"""Mechanisms whose noise is the sum of the clients' shares."""
