"""Adds the licence of each library to a bill of materials, as the installed library's own metadata states it.

usage: python tests/repo/licences.py BILL.json

`make dist` calls it. requirements.lock and requirements-runtime.lock have the same versions, so that the environment of
the project has every library of the bill.
"""

import json
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

from cyclonedx.spdx import fixup_id

LONGEST_NAME = 64
"""Characters of a licence's name. A longer field `License` is the licence's text, and its classifier names it."""


def licences(name: str, version: str) -> list[dict[str, Any]]:
    """Return CycloneDX's `licenses` of an installed library. Exit with a line for another version and for none.

    An SPDX expression goes first, then a name, then the classifiers.
    """
    try:
        facts = metadata(name)
    except PackageNotFoundError:
        sys.exit(f"{name} is not installed: its licence is not known")
    if facts["Version"] != version:
        sys.exit(f"{name} {facts['Version']} is installed, and the bill has {version}")
    for expression in facts.get_all("License-Expression") or []:
        return [{"expression": expression}]
    text = "".join(facts.get_all("License") or [])
    if 0 < len(text) <= LONGEST_NAME and "\n" not in text:
        return _named([text])
    classifiers = [one for one in facts.get_all("Classifier") or [] if one.startswith("License ::")]
    return _named(one.rpartition(" :: ")[2] for one in classifiers) or sys.exit(f"{name} {version} states no licence")


def _named(names: Iterable[str]) -> list[dict[str, Any]]:
    return [{"license": {"id": spdx} if (spdx := fixup_id(name)) else {"name": name}} for name in names]


def add_licences(bill: dict[str, Any]) -> None:
    """Add the licence of every component to a bill of materials."""
    for part in bill["components"]:
        part["licenses"] = licences(part["name"], part["version"])


if __name__ == "__main__":
    path = Path(sys.argv[1])
    bill = json.loads(path.read_text("utf-8"))
    add_licences(bill)
    path.write_text(json.dumps(bill, indent=2, ensure_ascii=False) + "\n", "utf-8")
