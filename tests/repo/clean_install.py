"""Checks dist/: the same bytes from a clone, tests in the unpacked sdist, both archives in clean environments.

usage: python tests/repo/clean_install.py

The sdist's tests run with this Python's libraries. The clean environments are made by the oldest and the newest Python
of this machine that the project supports, with the libraries of requirements-runtime.lock, and play a run with each
archive. Needs `make dist` and the package index.
"""

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORTED = ("3.11", "3.12", "3.13")
RUN = """
run = "clean"
horizon = 2000
policy = {first_batch = 6}
mechanism = {name = "distributed-polya", epsilon = 1.0}
environment = {name = "bernoulli", seed = 4, means = [0.1, 0.9]}
"""

SDIST_TESTS = [f"tests/repo/test_{name}.py" for name in ("files", "package", "structure", "readme", "recipes")]
"""Tests of the paths that an archive may lose: folders at the root, links, hidden files, the README's commands."""


def call(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Return what a command prints. Raise CalledProcessError if it fails; its stderr is shown."""
    environment = {**os.environ, **variables}
    return subprocess.run(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def interpreters() -> dict[str, str]:
    """Return version and path of each supported Python: this one, those on PATH, and those of pyenv."""
    result = {f"{sys.version_info[0]}.{sys.version_info[1]}": sys.executable}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in SUPPORTED:
        for candidate in (f"python{version}", *map(str, pyenv.glob(f"{version}.*/bin/python3"))):
            code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
            try:
                answer = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=True).stdout
            except (OSError, subprocess.CalledProcessError):
                continue  # not here, or it cannot make environments
            if answer.strip() == version:
                result.setdefault(version, candidate)
    return result


def check_bytes(folder: Path, wheel: Path) -> None:
    """Build the wheel again from a clone that another umask wrote, and compare."""
    call("sh", "-c", f"umask 027; git clone -q {ROOT} clone; ln -s {ROOT}/.venv clone/.venv", cwd=folder)
    call("make", "-o", ".venv/.installed", "dist", cwd=folder / "clone")
    first, second = (
        hashlib.sha256(path.read_bytes()).hexdigest() for path in (wheel, folder / "clone" / "dist" / wheel.name)
    )
    if first != second:
        sys.exit(f"{wheel.name} is not reproducible: {first} in dist/, {second} from a clone")
    print(f"{wheel.name}: the same bytes from a clone, sha256 {first}")


def check_bill() -> None:
    """Compare the bill of materials with the lock of a party's image."""
    bill = json.loads((ROOT / "dist" / "distrust-sbom.json").read_text("utf-8"))
    listed = {f"{part['name']}=={part['version']}" for part in bill["components"]}
    lock = (ROOT / "requirements-runtime.lock").read_text("utf-8")
    pinned = {line.split()[0] for line in lock.splitlines() if "==" in line and not line.startswith(" ")}
    if listed != pinned:
        sys.exit(f"the bill of materials and the lock differ in {sorted(listed ^ pinned)}")
    if bare := sorted(part["name"] for part in bill["components"] if not part.get("licenses")):
        sys.exit(f"the bill of materials has no licence of {', '.join(bare)}")
    print(f"distrust-sbom.json: the {len(listed)} libraries of requirements-runtime.lock")


def check_sdist(folder: Path, sdist: Path) -> None:
    """Unpack the sdist, collect all of its tests, and run the fast ones about its own files."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    unpacked = folder / sdist.name.removesuffix(".tar.gz")
    of_it = {"PYTHONPATH": f"{unpacked / 'src'}:{unpacked}"}
    place = call(sys.executable, "-c", "import distrust; print(distrust.__file__)", cwd=unpacked, **of_it)
    if not Path(place.strip()).is_relative_to(unpacked):
        sys.exit(f"the tests of the sdist would import {place.strip()}")
    pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    collected = call(*pytest, "--collect-only", cwd=unpacked, **of_it).splitlines()[-1]
    ran = call(*pytest, "-m", "not slow and not alone", *SDIST_TESTS, cwd=unpacked, **of_it).splitlines()[-1]
    print(f"{sdist.name}: unpacked, {collected}; of its own files {ran}")


def check_archives(folder: Path, version: str, python: str, archives: list[Path]) -> None:
    """Install each archive in turn in a clean environment and play a run with it."""
    call(python, "-m", "venv", folder / version, cwd=folder)
    binaries = folder / version / "bin"
    pip = (binaries / "python", "-m", "pip", "install", "-qq", "--disable-pip-version-check")
    call(*pip, "--require-hashes", "-r", ROOT / "requirements-runtime.lock", cwd=folder)
    (folder / "run.toml").write_text(RUN)
    for archive in archives:
        call(*pip, "--no-deps", "--no-build-isolation", "--force-reinstall", archive, cwd=folder)
        answer = call(binaries / "distrust", "run", "run.toml", "--in-process", "--json", "-", cwd=folder)
        result = json.loads(answer)
        if result["chosen"] != 1 or sum(result["pulls"]) != result["horizon"]:
            sys.exit(f"{archive.name} on Python {version} played a wrong run: {answer}")
        print(f"{archive.name}: installed on Python {version}, played {result['horizon']} clients")


def main() -> None:
    """Check the archives of dist/ on the oldest and on the newest Python."""
    wheels, sdists = sorted((ROOT / "dist").glob("*.whl")), sorted((ROOT / "dist").glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        sys.exit("dist/ needs one wheel and one sdist: make dist")
    result = interpreters()
    versions = sorted(result, key=lambda version: int(version.partition(".")[2]))
    if len(versions) == 1:
        print(f"Python {versions[0]} is the only one here that is supported: it is the oldest and the newest")
    check_bill()
    with tempfile.TemporaryDirectory() as folder:
        check_bytes(Path(folder), wheels[0])
        check_sdist(Path(folder), sdists[0])
        for version in dict.fromkeys((versions[0], versions[-1])):
            check_archives(Path(folder), version, result[version], [*wheels, *sdists])


if __name__ == "__main__":
    main()
