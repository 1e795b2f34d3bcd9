"""Tests that each test is in exactly one stage of CI, and what each stage and target needs of the machine."""

import os
import re
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.picked import ALL, picked

MARKS = ("slow", "alone", "ray", "kernels")
STAGES = ("fast", "slow", "kernels", "ray", "alone")


def expressions() -> dict[str, str]:
    """Return the expression of marks of each target of the Makefile that runs tests."""
    text = (ROOT / "Makefile").read_text("utf-8")
    return dict(re.findall(r'^(test[\w-]*):.*\n\t.*pytest .*-m "([^"]+)"', text, re.MULTILINE))


def plays(expression: str, marks: dict[str, bool]) -> bool:
    return bool(eval(expression, {"__builtins__": {}}, marks))  # ours, of four names


def test_every_mark_is_in_one_stage_of_ci_and_make_test_has_the_first_two() -> None:
    targets = expressions()
    assert set(targets) == {"test", *(f"test-{stage}" for stage in STAGES)}
    for values in product((False, True), repeat=len(MARKS)):
        marks = dict(zip(MARKS, values, strict=True))
        playing = [stage for stage in STAGES if plays(targets[f"test-{stage}"], marks)]
        assert len(playing) == 1, marks
        assert plays(targets["test"], marks) == (playing[0] in STAGES[:2])


def test_ci_plays_every_stage() -> None:
    text = (ROOT / ".ci" / "run").read_text("utf-8")
    assert re.findall(r"^stage (\w+) \|\|", text, re.MULTILINE) == list(STAGES)


def ci_function(name: str, folder: Path, **programs: str) -> subprocess.CompletedProcess[str]:
    """Call one function of `.ci/run` in a folder, whose `.venv/bin` has these programs and is first on the path."""
    text = (ROOT / ".ci" / "run").read_text("utf-8")
    (function,) = re.findall(rf"^{name}\(\) [({{]\n.*?^[)}}]$", text, re.MULTILINE | re.DOTALL)
    place = folder / ".venv" / "bin"
    place.mkdir(parents=True, exist_ok=True)
    for program, script in programs.items():
        (place / program).write_text(f"#!/bin/sh\n{script}\n")
        (place / program).chmod(0o755)
    script = f'say() {{ echo "$*"; }}\nstage() {{ echo "$1 with $A"; }}\n{function}\n{name} || exit 1'
    environment = {"PATH": f"{place}:{os.environ['PATH']}", "A": "none"}
    command = ["bash", "-euo", "pipefail", "-c", script]
    return subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, check=False)


def test_ci_plays_the_fast_tests_with_other_features_or_fails(tmp_path: Path) -> None:
    played = ci_function("fast_elsewhere", tmp_path, python="echo A=one; echo B=")
    assert (played.returncode, played.stdout) == (0, "A=one\nB=\nfast with one\n")
    for broken in ("echo A=one; exit 1", "exit 0"):
        ended = ci_function("fast_elsewhere", tmp_path, python=broken)
        assert (ended.returncode, ended.stdout) == (1, ""), broken


def test_ci_sees_a_changed_checkout_before_the_demo_after_the_first_stage_and_at_the_end(tmp_path: Path) -> None:
    for git, code, words in (("true", 0, ""), ("echo '?? new'", 1, "?? new\n"), ("exit 128", 1, "")):
        ended = ci_function("clean", tmp_path, git=git)
        assert (ended.returncode, ended.stdout) == (code, words), git
    text = (ROOT / ".ci" / "run").read_text("utf-8")
    stages = re.findall(r"^(clean|demo|stage \w+|make [\w-]+(?= <)) .*\|\| failed", text, re.MULTILINE)
    assert (stages[:2], stages[3], stages[-1]) == (["clean", "demo"], "clean", "clean")


def test_ci_gives_the_demos_user_no_file_of_the_checkout() -> None:
    """A file that a clone shares by a hard link changes its owner in the origin, too."""
    clones = re.findall(r"^ *git clone .*$", (ROOT / ".ci" / "run").read_text("utf-8"), re.MULTILINE)
    assert clones
    assert all(" --no-hardlinks " in line for line in clones)


def test_ci_leaves_nothing_out_that_other_runs_pick_from() -> None:
    text = (ROOT / ".ci" / "run").read_text("utf-8")
    assert re.search(rf"^export .*\b{ALL}=1\b", text, re.MULTILINE)
    offered = list(range(9))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(ALL, "1")
        assert picked(offered, 2, "numbers") == offered
        environment.delenv(ALL)
        few = picked(offered, 2, "numbers")
        assert len(few) == 2
        assert few == sorted(few) == picked(offered, 2, "numbers")


def needs(target: str) -> set[str]:
    """Return what a target of the Makefile depends on."""
    (words,) = re.findall(rf"^{target}:(.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    return set(words.split())


def test_the_demo_and_the_fast_tests_need_no_debian_package_and_all_that_may_start_one_name_one_target() -> None:
    for target in ("test", "test-slow", "test-alone", "mutations"):
        assert needs(target) == {"$(STAMP)", "system-packages"}
    for target in ("demo", "test-fast"):
        assert needs(target) == {"$(STAMP)"}


def test_ci_begins_with_the_demo_as_a_user_without_rights() -> None:
    text = (ROOT / ".ci" / "run").read_text("utf-8")
    assert text.index("demo || failed+=") < text.index("make --keep-going check")
    assert "setpriv --reuid=65534" in text


def system_packages(folder: Path, user: int, *programs: str) -> tuple[int, str, list[str]]:
    """Call `make system-packages` where these programs are. Return its code and words, and apt-get's calls."""
    place = folder / f"{user}-{len(programs)}"
    place.mkdir()
    scripts = dict.fromkeys(programs, "")
    scripts |= {"id": f"echo {user}", "apt-get": f'echo "$*" >>{place}/calls'}
    for name, script in scripts.items():
        (place / name).write_text(f"#!/bin/sh\n{script}\n")
        (place / name).chmod(0o755)
    make = shutil.which("make")
    assert make
    command = [make, "--no-print-directory", "system-packages", "OFF_PATH=/nowhere"]
    ended = subprocess.run(command, cwd=ROOT, env={"PATH": str(place)}, text=True, capture_output=True, check=False)
    calls = (place / "calls").read_text().splitlines() if (place / "calls").exists() else []
    return ended.returncode, ended.stdout + ended.stderr, calls


def test_missing_debian_packages_are_installed_by_root_and_told_to_others(tmp_path: Path) -> None:
    install = "install -y --no-install-recommends postgresql haproxy"
    code, words, calls = system_packages(tmp_path, 1000, "chromium", "openssl")
    assert (code, calls) == (2, [])
    (line, *_) = words.splitlines()
    assert line == f"some tests need Debian packages; as root: apt-get update && apt-get {install}"
    code, words, calls = system_packages(tmp_path, 0, "chromium", "openssl")
    assert (code, calls) == (0, ["update -qq", f"{install} -qq"])
    assert words == "installing Debian packages for tests: postgresql haproxy\n"
    every = ("chromium", "openssl", "initdb", "haproxy")
    assert system_packages(tmp_path, 1000, *every) == system_packages(tmp_path, 0, *every) == (0, "", [])


def test_every_mark_is_declared() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    assert tuple(re.findall(r'^  "(\w+): ', text, re.MULTILINE)) == (*MARKS, "few")
