"""Empirical lower bounds on ε of mechanisms as they are deployed: many trials, two worlds, an exact test."""

from distrust.lab.audit.finding import ALARM, Finding, audit, check_trials, judge
from distrust.lab.audit.setting import Setting, Transport
from distrust.lab.audit.trials import outcomes

__all__ = ["ALARM", "Finding", "Setting", "Transport", "audit", "check_trials", "judge", "outcomes"]
