"""Lists the files of the project: those under version control, or in an unpacked sdist those that it came with."""

import os
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]


def listed(*folders: str) -> list[str]:
    """Return the paths of the files and links below these folders of the project's root, or of all, sorted.

    A folder may be a file. Without `.git`, as in an unpacked sdist, all files that `.gitignore` does not name.
    """
    names = _tracked() if (ROOT / ".git").exists() else _found(ROOT)
    inside = tuple(f"{folder}/" for folder in folders)
    return sorted(name for name in names if not folders or name in folders or name.startswith(inside))


def _tracked() -> list[str]:
    command = ["git", "ls-files", "-z"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in text.split("\0") if name]


def _found(folder: Path) -> Iterator[str]:
    """Yield files and links by their paths from the root."""
    patterns = (ROOT / ".gitignore").read_text("utf-8").split()
    for entry in os.scandir(folder):
        name = str(Path(entry.path).relative_to(ROOT))
        if any(fnmatch(f"/{name}/" if pattern[0] == "/" else f"{entry.name}/", pattern) for pattern in patterns):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _found(Path(entry.path))
        else:
            yield name
