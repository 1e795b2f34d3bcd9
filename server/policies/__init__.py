"""What to ask next, one policy a file. A policy sees estimates and the laws of their errors, never a mechanism."""

from server.policies.base import Ask, Estimate, Interval, Key, Policy, Query
from server.policies.dp_se import DpSe
from server.policies.elimination import Elimination
from server.policies.successive_elimination import SuccessiveElimination
from server.policies.ucb1 import Ucb1
from server.policies.vb_sdp_ae import VbSdpAe

__all__ = [
    "Ask",
    "DpSe",
    "Elimination",
    "Estimate",
    "Interval",
    "Key",
    "Policy",
    "Query",
    "SuccessiveElimination",
    "Ucb1",
    "VbSdpAe",
]
