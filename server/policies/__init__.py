"""What to ask next, one policy a file. A policy sees estimates and the laws of their errors, never a mechanism."""

from server.policies.base import Ask, Estimate, Interval, Policy
from server.policies.successive_elimination import SuccessiveElimination

__all__ = ["Ask", "Estimate", "Interval", "Policy", "SuccessiveElimination"]
