"""Finds and imports classes of the user's own: by entry point of an installed package, or by `module:Name`.

A process imports such a class only when a run names it. Over HTTP the name comes from another party, so a process
imports a `module:Name` only where its own operator listed it (`allow`): no caller makes it import a module of the
caller's choice. An installed package counts as listed.
"""

import hashlib
import importlib
import re
import sys
from importlib.metadata import EntryPoint, entry_points, packages_distributions, version
from pathlib import Path
from typing import Any

from distrust.common.errors import BadParameter
from distrust.common.wire import Message

REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")

_allowed: set[str] = set()


class Extension(Message):
    """Origin of a class of the user's own.

    kind          "environment", "policy" or "mechanism".
    name          as the run file has it.
    distribution  the installed package and its version; None for a module that belongs to none.
    source        of the module's file, the first 12 hex digits of SHA-256; None where it has no file.
    """

    kind: str
    name: str
    distribution: str | None
    version: str | None
    source: str | None


def load_reference(reference: str) -> Any:
    """Return the object of `module:Name`. Raises ImportError or AttributeError, as Python does."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def allow(*references: str) -> None:
    """List `module:Name` references that this process's operator wants. Raises BadParameter for another form."""
    for reference in filter(None, references):
        if not REFERENCE.fullmatch(reference):
            raise BadParameter("extensions", reference, "must be module:Name")
        _allowed.add(reference)


def allow_named(name: object) -> None:
    """List `name` if it is a `module:Name` reference. For names that this process's own operator wrote."""
    if isinstance(name, str) and REFERENCE.fullmatch(name):
        allow(name)


def offered(group: str, name: str) -> bool:
    """Return whether `find_class` knows where to look. It imports no module."""
    return name in _allowed if ":" in name else bool(entry_points(group=group, name=name))


def find_class(kind: str, group: str, name: str) -> tuple[Any, Extension]:
    """Import the class that `name` refers to. Return it and its origin.

    Raises BadParameter: a reference that the operator did not list, a name that two packages offer, and whatever goes
    wrong on import.
    """
    field = f"{kind}.name"
    if ":" in name:
        if name not in _allowed:
            why = "a process imports a module only where its own operator lists it, in DISTRUST_EXTENSIONS"
            raise BadParameter(field, name, f"is not listed here: {why}")
        found, module = _loaded(field, name, name), name.partition(":")[0]
        package = next(iter(packages_distributions().get(module.partition(".")[0], ())), None)
        return found, _origin(kind, name, package, version(package) if package else None, module)
    entry = _entry(field, group, name)
    found = _loaded(field, name, entry.value)
    package, number = (entry.dist.name, entry.dist.version) if entry.dist else (None, None)
    return found, _origin(kind, name, package, number, entry.module)


def _entry(field: str, group: str, name: str) -> EntryPoint:
    entries = {
        (entry.dist.name if entry.dist else "", entry.value): entry for entry in entry_points(group=group, name=name)
    }
    if not entries:
        raise BadParameter(field, name, f"no package that is installed here offers it (entry points {group})")
    if len(entries) > 1:
        offers = " and ".join(sorted(distribution for distribution, _ in entries))
        raise BadParameter(field, name, f"is offered by {offers}: one of them must go")
    return next(iter(entries.values()))


def _loaded(field: str, name: str, reference: str) -> Any:
    try:
        return load_reference(reference)
    except Exception as error:
        hint = ""
        if isinstance(error, ModuleNotFoundError) and error.name == reference.partition(":")[0].partition(".")[0]:
            hint = "; install it, or put its folder in PYTHONPATH (the working folder is not searched)"
        what = f"{reference} cannot be imported: {type(error).__name__}: {error}{hint}"
        raise BadParameter(field, name, what) from error


def _origin(kind: str, name: str, distribution: str | None, number: str | None, module: str) -> Extension:
    file = getattr(sys.modules[module], "__file__", None)
    source = None if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]
    return Extension(kind=kind, name=name, distribution=distribution, version=number, source=source)
