"""Private bandit learning with clients, an intermediary and a server that need not trust each other.

run       play a run in this process: a dictionary of a run file's keys, a path, TOML text.
services  start the three services for a `with` block; connect: to services that are up. Both run and inspect there.
inspect   what each party saw of a run's messages.
sweep     play an experiment on all cores.
privacy   what a mechanism promises and costs; compare: all of them side by side.
advise    mechanisms and sizes of batches for a run, by the width of its intervals.
audit     try to break a mechanism's claim.
plot      regret with bands, intervals round by round, bits against regret.

Errors to catch are ProtocolErrors: BadParameter, BadRunFile and BadExperiment for bad input; Unavailable, Unauthorized,
WrongCohort, Conflict and RunFailed from a connection.

What a call returns shows itself in a notebook, and has its tables as data frames: `result.frame("arms")`.
A name is imported when it is first used (PEP 562), because the libraries behind it take seconds to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from distrust.common.extras import lacking

if TYPE_CHECKING:
    from distrust.common.dp.accounting.guarantee import Guarantee as Guarantee
    from distrust.common.dp.calculator.compare import Comparison as Comparison
    from distrust.common.dp.calculator.compare import compare as compare
    from distrust.common.dp.calculator.query import PrivacyQuery as PrivacyQuery
    from distrust.common.dp.calculator.report import Report as Report
    from distrust.common.dp.calculator.report import privacy as privacy
    from distrust.common.errors import BadParameter as BadParameter
    from distrust.common.errors import Conflict as Conflict
    from distrust.common.errors import ProtocolError as ProtocolError
    from distrust.common.errors import RunFailed as RunFailed
    from distrust.common.errors import Unauthorized as Unauthorized
    from distrust.common.errors import Unavailable as Unavailable
    from distrust.common.errors import WrongCohort as WrongCohort
    from distrust.common.randomness import SystemStream as SystemStream
    from distrust.lab.audit.in_process import audit as audit
    from distrust.lab.audit.verdict import Finding as Finding
    from distrust.lab.figures import plot as plot
    from distrust.lab.play.advice import Advice as Advice
    from distrust.lab.play.advice import advise as advise
    from distrust.lab.play.in_process import run as run
    from distrust.lab.play.result import Result as Result
    from distrust.lab.play.run_file import BadRunFile as BadRunFile
    from distrust.lab.play.run_file import RunFile as RunFile
    from distrust.lab.play.run_file import parse as parse
    from distrust.lab.play.run_file import read as read
    from distrust.lab.services.connection import Connection as Connection
    from distrust.lab.services.connection import connect as connect
    from distrust.lab.services.connection import inspect as inspect
    from distrust.lab.services.connection import services as services
    from distrust.lab.sweep.cells import BadExperiment as BadExperiment
    from distrust.lab.sweep.engine import SweepOutcome as SweepOutcome
    from distrust.lab.sweep.engine import sweep as sweep

    __version__: str

MODULES = {
    "Advice": "lab.play.advice",
    "BadExperiment": "lab.sweep.cells",
    "BadParameter": "common.errors",
    "BadRunFile": "lab.play.run_file",
    "Comparison": "common.dp.calculator.compare",
    "Conflict": "common.errors",
    "Connection": "lab.services.connection",
    "Finding": "lab.audit.verdict",
    "Guarantee": "common.dp.accounting.guarantee",
    "PrivacyQuery": "common.dp.calculator.query",
    "ProtocolError": "common.errors",
    "Report": "common.dp.calculator.report",
    "Result": "lab.play.result",
    "RunFailed": "common.errors",
    "RunFile": "lab.play.run_file",
    "SweepOutcome": "lab.sweep.engine",
    "SystemStream": "common.randomness",
    "Unauthorized": "common.errors",
    "Unavailable": "common.errors",
    "WrongCohort": "common.errors",
    "advise": "lab.play.advice",
    "audit": "lab.audit.in_process",
    "compare": "common.dp.calculator.compare",
    "connect": "lab.services.connection",
    "inspect": "lab.services.connection",
    "parse": "lab.play.run_file",
    "plot": "lab.figures",
    "privacy": "common.dp.calculator.report",
    "read": "lab.play.run_file",
    "run": "lab.play.in_process",
    "services": "lab.services.connection",
    "sweep": "lab.sweep.engine",
}
"""Public name, and the module of `distrust` that defines it, or whose submodule it is."""

__all__ = [
    "Advice",
    "BadExperiment",
    "BadParameter",
    "BadRunFile",
    "Comparison",
    "Conflict",
    "Connection",
    "Finding",
    "Guarantee",
    "PrivacyQuery",
    "ProtocolError",
    "Report",
    "Result",
    "RunFailed",
    "RunFile",
    "SweepOutcome",
    "SystemStream",
    "Unauthorized",
    "Unavailable",
    "WrongCohort",
    "advise",
    "audit",
    "compare",
    "connect",
    "inspect",
    "parse",
    "plot",
    "privacy",
    "read",
    "run",
    "services",
    "sweep",
]


def __getattr__(name: str) -> object:
    """Return a public name from the module that defines it, or the version."""
    if name == "__version__":
        return import_module("importlib.metadata").version("distrust")
    if name not in MODULES:
        raise AttributeError(f"module 'distrust' has no attribute {name!r}; public names: {', '.join(__all__)}")
    try:
        module = import_module(f"distrust.{MODULES[name]}")
        return getattr(module, name) if hasattr(module, name) else import_module(f"{module.__name__}.{name}")
    except ModuleNotFoundError as error:
        install = lacking(error, f"distrust.{name} needs")
        if install is None:
            raise
        raise ModuleNotFoundError(install, name=error.name) from error


def __dir__() -> list[str]:
    """Return the public names, for completion in a notebook."""
    return [*__all__, "__version__"]
