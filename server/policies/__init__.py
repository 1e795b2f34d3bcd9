"""What to ask next, one policy a file. A policy sees estimates and the laws of their errors, never a mechanism."""

from distrust.server.policies.base import Ask, Estimate, Interval, Key, Policy, Query, Stopped
from distrust.server.policies.dp_se import DpSe
from distrust.server.policies.elimination import Elimination, SuccessiveElimination
from distrust.server.policies.ucb1 import Ucb1
from distrust.server.policies.vb_sdp_ae import VbSdpAe

__all__ = [
    "Ask",
    "DpSe",
    "Elimination",
    "Estimate",
    "Interval",
    "Key",
    "Policy",
    "Query",
    "Stopped",
    "SuccessiveElimination",
    "Ucb1",
    "VbSdpAe",
]
