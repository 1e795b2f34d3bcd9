"""A package of a user's own for each test, on this process's path and on that of the processes that it starts."""

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.extension_package import Own, install


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Own]:
    """Installs a module: its text, its group, and what its entry points name. Returns the module's name."""
    made: list[str] = []

    def make(text: str, group: str, entries: dict[str, str]) -> str:
        module = f"own_{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:8]}_{len(made)}"
        references = {f"{module}-{name}": f"{module}:{target}" for name, target in entries.items()}
        install(tmp_path, module, text.replace("MODULE", module), {group: references})
        made.append(module)
        return module

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    yield make
    for module in made:
        sys.modules.pop(module, None)
