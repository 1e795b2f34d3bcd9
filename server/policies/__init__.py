"""What to ask next, one policy a file. A policy sees estimates and the laws of their errors, never a mechanism."""

from server.policies.base import Ask, Estimate, Interval, Key, Policy, Query
from server.policies.successive_elimination import SuccessiveElimination

__all__ = ["Ask", "Estimate", "Interval", "Key", "Policy", "Query", "SuccessiveElimination"]
