"""Private bandit learning with clients, an intermediary and a server that need not trust each other.

What a notebook needs: read a run file, play it in this process, ask what a mechanism promises, audit its claim.
A name is imported when it is first used (PEP 562), because the libraries behind it take seconds to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distrust.common.calculator.query import PrivacyQuery as PrivacyQuery
    from distrust.common.errors import BadParameter as BadParameter
    from distrust.common.privacy.guarantee import Guarantee as Guarantee
    from distrust.common.randomness import SystemStream as SystemStream
    from distrust.lab.audit.in_process import audit as audit
    from distrust.lab.audit.verdict import Finding as Finding
    from distrust.lab.run.in_process import run as run
    from distrust.lab.run.result import Result as Result
    from distrust.lab.run.run_file import BadRunFile as BadRunFile
    from distrust.lab.run.run_file import RunFile as RunFile
    from distrust.lab.run.run_file import parse as parse
    from distrust.lab.run.run_file import read as read

MODULES = {
    "BadParameter": "common.errors",
    "BadRunFile": "lab.run.run_file",
    "Finding": "lab.audit.verdict",
    "Guarantee": "common.privacy.guarantee",
    "PrivacyQuery": "common.calculator.query",
    "Result": "lab.run.result",
    "RunFile": "lab.run.run_file",
    "SystemStream": "common.randomness",
    "audit": "lab.audit.in_process",
    "parse": "lab.run.run_file",
    "read": "lab.run.run_file",
    "run": "lab.run.in_process",
}
"""Public name, and the module of `distrust` that defines it."""

__all__ = [
    "BadParameter",
    "BadRunFile",
    "Finding",
    "Guarantee",
    "PrivacyQuery",
    "Result",
    "RunFile",
    "SystemStream",
    "audit",
    "parse",
    "read",
    "run",
]


def __getattr__(name: str) -> object:
    """Return a public name from the module that defines it."""
    if name not in MODULES:
        raise AttributeError(f"module 'distrust' has no attribute {name!r}; public names: {', '.join(__all__)}")
    return getattr(import_module(f"distrust.{MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names, for completion in a notebook."""
    return __all__
