"""Changes lines that matter, one at a time, in copies of the checkout, and runs the tests that must fail then.

    python -m tests.repo.mutations [WORD]

WORD chooses the mutations whose file, line or tests contain it. Exits 1 if a mutation survives, or its line is not
there exactly once, or a named test fails without any mutation. `mutations.toml` has the table: checks, signs,
thresholds and floors. `test_mutations.py` compares it with the code.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import NamedTuple

from tests.support.checkout import ROOT, listed
from tests.support.picked import ALL

TABLE = Path(__file__).with_suffix(".toml")
LIMIT_SECONDS = 900
"""Seconds for the tests of one mutation. One that makes them hang counts as a survivor, because no test names it."""

PASSED, FAILED = 0, 1  # pytest's exit codes; others say that no test ran


class Mutation(NamedTuple):
    """A line of a file, without its indentation, what stands there instead, and the tests that must fail then."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def table() -> list[Mutation]:
    """Return the mutations in the order of the table."""
    entries = tomllib.loads(TABLE.read_text("utf-8"))["mutation"]
    return [Mutation(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def mutated(text: str, one: Mutation) -> str:
    """Return a file's text with the mutation. Raises ValueError unless the old line is there exactly once."""
    lines = text.splitlines(keepends=True)
    found = [number for number, line in enumerate(lines) if line.strip() == one.old]
    if len(found) != 1:
        raise ValueError(f"{one.file} has the line {len(found)} times and must have it once: {one.old}")
    line = lines[found[0]]
    indentation = line[: len(line) - len(line.lstrip())]
    return "".join([*lines[: found[0]], f"{indentation}{one.new}\n", *lines[found[0] + 1 :]])


def copy_checkout(target: Path) -> None:
    """Copy the project's files, with the links below `src/distrust` as links."""
    for name in filter(lambda name: os.path.lexists(ROOT / name), listed()):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


def run_tests(copy: Path, tests: Sequence[str], **variables: str) -> tuple[int, str]:
    """Return pytest's exit code and output for some tests in a copy."""
    words = ["-q", "-x", "--no-header", "--tb=short", "-p", "no:cacheprovider", "-n", "0"]
    path = f"{copy / 'src'}{os.pathsep}{copy}"  # forked services import the copy, too, and not what is installed
    environment = {**os.environ, ALL: "1", "PYTHONPATH": path, **variables}  # a changed line would pick others
    command = [sys.executable, "-m", "pytest", *words, *tests]
    done = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS
    )
    return done.returncode, done.stdout + done.stderr


def survives(copy: Path, one: Mutation) -> str:
    """Return why a mutation is not caught in this copy, which is as before afterwards; empty if it is caught."""
    path = copy / one.file
    text = path.read_text("utf-8")
    try:
        changed = mutated(text, one)
    except ValueError as error:
        return str(error)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()  # its check, by size and second, would take the changed file for the old one
    path.write_text(changed, "utf-8")
    try:
        code, output = run_tests(copy, one.tests, PYTHONDONTWRITEBYTECODE="1")
    except subprocess.TimeoutExpired:
        return f"its tests did not end within {LIMIT_SECONDS} s"
    finally:
        path.write_text(text, "utf-8")
    if code == PASSED:
        return "its tests pass"
    return "" if code == FAILED else f"no test ran:\n{output}"


def main(word: str = "") -> int:
    """Print a line for each mutation. Return the program's exit code."""
    chosen = [one for one in table() if any(word in text for text in (one.file, one.old, *one.tests))]
    if not chosen:
        print(f"no mutation has {word!r} in its file, line or tests")
        return 1
    workers = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder, ThreadPoolExecutor(workers) as pool:
        copies = Queue[Path]()
        for number in range(workers):
            copy_checkout(Path(folder) / str(number))
            copies.put(Path(folder) / str(number))
        code, output = run_tests(Path(folder) / "0", sorted({test for one in chosen for test in one.tests}))
        if code != PASSED:
            print(f"the named tests do not pass without a mutation:\n{output}")
            return 1

        def play(one: Mutation) -> str:
            copy = copies.get()
            try:
                return survives(copy, one)
            finally:
                copies.put(copy)

        survivors = []
        for one, why in zip(chosen, pool.map(play, chosen), strict=True):
            line = f"{'SURVIVES' if why else 'caught':8}  {one.file}: {one.old}\n{'':10}{one.new}"
            if why:
                line += f"\n{'':10}{why}"
                survivors.append(line)
            print(line, flush=True)
    # Once more at the end: of a long output often only the last lines are kept.
    print("\n".join([*survivors, f"{len(chosen)} mutations, {len(chosen) - len(survivors)} caught"]))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
