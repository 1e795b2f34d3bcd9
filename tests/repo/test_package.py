"""Tests that the links of the package `distrust` lead to the folders, and that wheel and sdist are complete."""

import doctest
import re
import resource
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import import_module
from importlib.metadata import metadata
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

import distrust
from tests.support.checkout import ROOT, listed

PACKAGE = ROOT / "src" / "distrust"
FOLDERS = ("aggregator", "client", "common", "lab", "server", "shuffler")


def test_the_package_links_to_the_six_folders_and_to_nothing_else() -> None:
    links = {path.name: str(path.readlink()) for path in PACKAGE.iterdir() if path.is_symlink()}
    assert links == {name: f"../../{name}" for name in FOLDERS}
    assert all((PACKAGE / name / "__init__.py").is_file() for name in FOLDERS)


def test_the_public_names_are_sorted_and_each_is_what_its_module_defines() -> None:
    assert sorted(distrust.MODULES) == distrust.__all__
    assert dir(distrust.plot) == distrust.plot.__all__
    assert set(dir(distrust)) == {*distrust.__all__, "__version__"}
    for name, module in distrust.MODULES.items():
        assert getattr(distrust, name) is getattr(import_module(f"distrust.{module}"), name)


def test_the_types_of_the_public_names_come_from_the_same_modules() -> None:
    """A type checker reads the imports of the package's `__init__`; at run time `MODULES` names the modules."""
    text = (PACKAGE / "__init__.py").read_text("utf-8")
    for name, module in distrust.MODULES.items():
        assert f"    from distrust.{module} import {name} as {name}\n" in text


SERVED = {"connect", "inspect", "services"}
"""Names whose examples call services: `tests/system/test_connection.py` runs them."""


def test_the_examples_of_the_public_names_print_what_they_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    examples = {name: finder.find(getattr(distrust, name), name) for name in distrust.__all__ if name not in SERVED}
    shown = {name for name, result in examples.items() if any(one.examples for one in result)}
    assert shown >= {"audit", "compare", "parse", "plot", "privacy", "run", "sweep"}
    for result in examples.values():
        for one in result:
            runner.run(one)
    assert runner.summarize(verbose=False).failed == 0


@pytest.mark.parametrize(("name", "library"), [("plot", "matplotlib"), ("sweep", "joblib")])
def test_a_name_whose_library_is_missing_says_which_extra_installs_it(name: str, library: str) -> None:
    code = f"import sys; sys.modules[{library!r}] = None; import distrust; distrust.{name}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    needs = f"ModuleNotFoundError: distrust.{name} needs {library}: pip install 'distrust[lab]'"
    assert done.stderr.splitlines()[-1] == needs


def test_another_name_is_refused_with_the_public_ones() -> None:
    with pytest.raises(AttributeError, match="'play'; public names: Advice, BadExperiment"):
        distrust.play  # noqa: B018


def test_the_package_alone_imports_no_library_and_the_version_is_printed_at_once() -> None:
    heavy = "{'numpy', 'scipy', 'pydantic', 'typer'} & set(sys.modules)"
    code = f"import distrust, sys; assert not {heavy}; dir(distrust); assert not {heavy}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "distrust.lab", "--version"], cwd=ROOT, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


PACKED = {"PKG-INFO", "setup.cfg"}
"""Files that setuptools adds to an sdist, beside those of src/distrust.egg-info."""


def build(kind: str, folder: Path) -> Path:
    """Return an archive that setuptools builds from a copy of the checkout, without the network."""
    copy = folder / "copy"
    files = "\0".join(listed()).encode()
    copy.mkdir()
    pack = subprocess.run(["tar", "--null", "-T", "-", "-c"], cwd=ROOT, input=files, capture_output=True, check=True)
    subprocess.run(["tar", "-x"], cwd=copy, input=pack.stdout, check=True)
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, check=True)
    (built,) = folder.glob("distrust-*")
    return built


@pytest.mark.slow
def test_a_wheel_holds_the_package_and_no_bare_names(tmp_path: Path) -> None:
    with zipfile.ZipFile(build("wheel", tmp_path)) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == {f"distrust/{name}" for name in [*listed(*FOLDERS), "__init__.py", "py.typed"]}


@pytest.mark.slow
def test_an_sdist_is_the_checkout_with_its_hidden_files_and_its_links(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path)) as sdist:
        entries = {entry.name.partition("/")[2]: entry for entry in sdist if not entry.isdir()}
    added = {name for name in entries if name.startswith("src/distrust.egg-info/")} | PACKED
    assert set(entries) - added == set(listed()) - PACKED
    assert {name: entry.linkname for name, entry in entries.items() if entry.issym()} == {
        f"src/distrust/{name}": f"../../{name}" for name in FOLDERS
    }


def test_the_citation_and_the_changelog_name_the_version_of_the_package_and_its_addresses_are_the_papers() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    version = project["version"]
    assert distrust.__version__ == version
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == version
    assert f"\n## {version}\n" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    papers = (ROOT / "docs" / "reference" / "papers.md").read_text("utf-8")
    assert set(project["urls"].values()) == {reference["url"] for reference in citation["references"]}
    for reference in citation["references"]:
        assert f"| {reference['title']} |" in papers
        assert f"({reference['url']})" in papers


def pins(lock: str) -> set[str]:
    """Return the pins of a lock file: name, version."""
    return {line.split()[0] for line in (ROOT / lock).read_text("utf-8").splitlines() if "==" in line}


def test_a_party_runs_with_the_versions_that_the_tests_ran_with_and_without_their_tools() -> None:
    runtime = pins("requirements-runtime.lock")
    assert runtime <= pins("requirements.lock")
    names = {pin.partition("==")[0] for pin in runtime}
    assert {"fastapi", "numpy", "cryptography", "sqlalchemy"} <= names
    assert names & {"pytest", "mypy", "ruff", "hypothesis", "matplotlib", "pyarrow", "scikit-learn", "joblib"} == set()


def test_every_version_of_the_lock_runs_on_the_oldest_python() -> None:
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text("utf-8"), re.MULTILINE)
    assert len(pinned) > 100
    # Some libraries name no Python. `get`, because `[...]` raises where a library has put its finder before Python's.
    wanted = {name: metadata(name).get("Requires-Python") or "" for name in pinned}
    assert [name for name, versions in wanted.items() if "3.11.2" not in SpecifierSet(versions)] == []
