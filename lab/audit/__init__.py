"""Empirical lower bounds on ε of mechanisms as they are deployed: many trials, two worlds, an exact test."""

from lab.audit.finding import ALARM, Finding, audit, check_trials, judge
from lab.audit.trials import Setting, outcomes

__all__ = ["ALARM", "Finding", "Setting", "audit", "check_trials", "judge", "outcomes"]
