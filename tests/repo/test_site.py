"""Tests that the site's generated pages are complete, and that examples print what they show."""

import importlib.util
import inspect
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from distrust.client.environments import ENVIRONMENTS
from distrust.common.dp.mechanisms import MECHANISMS
from distrust.common.protocol.messages.cohort import Cohort, TicketRequest
from distrust.common.protocol.messages.upload import ActionRequest, Leaving, Upload
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.progress import RegretCurve
from distrust.common.specs.policy import POLICIES
from distrust.lab.__main__ import COMMANDS

BODIES = (TicketRequest, Cohort, Leaving, Upload, ActionRequest, RegretCurve, RunConfig)
"""Messages that callers send as bodies."""

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXAMPLES = re.compile(r"```python\n((?:(?!```).)*)```\n+```text\n(.*?)```", re.DOTALL)
FILES = re.compile(r"```python\n(# (\w+\.py)\n.*?)```", re.DOTALL)
"""Blocks that begin with the name of a file: the examples of the page import it."""


@cache
def generator() -> ModuleType:
    """Return the module that writes the generated pages."""
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def page(name: str) -> str:
    text: str = generator().PAGES[f"reference/{name}.md"]()
    return text


def test_the_reference_has_every_command_policy_environment_and_mechanism() -> None:
    assert [name for name in COMMANDS if f"\n## distrust {name}\n" not in page("command-line")] == []
    assert page("command-line").count("\n  -h, --help ") == page("command-line").count("\n## distrust ")
    assert "--max-epsilon <float range>" in page("command-line")  # an option that the fleet's process reads
    assert [name for name in POLICIES if f'\n### policy name = "{name}"\n' not in page("run-file")] == []
    assert [name for name in ENVIRONMENTS if f'\n### environment name = "{name}"\n' not in page("run-file")] == []
    assert [name for name in MECHANISMS if f"\n## {name}\n" not in page("mechanism-classes")] == []


def test_the_page_of_the_mechanisms_says_all_that_their_docstrings_say_and_has_no_block_that_scrolls() -> None:
    shown = " ".join(page("mechanism-classes").split())
    for name in MECHANISMS:
        lines = (inspect.getdoc(MECHANISMS[name]) or "").splitlines()
        pieces = [piece for line in lines for piece in re.split(r" {2,}", line.strip())]
        assert [piece for piece in pieces if piece not in shown] == []
    assert "```" not in page("mechanism-classes")


@pytest.mark.parametrize("name", ["run-file", "settings"])
def test_every_key_of_a_run_file_and_every_setting_has_a_meaning(name: str) -> None:
    rows = [line for line in page(name).splitlines() if line.startswith("| `")]
    assert len(rows) > 30
    assert [row for row in rows if not row.split(" | ")[-1].strip(" |")] == []


def test_operations_that_refuse_without_a_token_name_it_in_openapi_and_no_operators_keys_are_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRUST_KEYS", str(tmp_path / "server.keys"))
    operations = re.findall(r"^<code>(.+)</code><br>\n(.+)$", page("http-api"), re.MULTILINE)
    assert len(operations) > 40
    needs = {name: re.search(r" Needs the (\w+)'s token\.", words) for name, words in operations}
    refusing = {name for name, words in operations if re.search(r" Problems: .*\b401\b", words)}
    assert {needs[name][1] for name in refusing if needs[name]} == {"operator", "inspector", "participant"}  # type: ignore[index]
    assert {name for name, result in needs.items() if result} == refusing
    assert list(tmp_path.iterdir()) == []


def test_every_parameter_and_every_field_of_a_body_has_a_type_and_a_meaning_on_the_page_of_the_api() -> None:
    text = page("http-api")
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    rows = [[cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split(" | ")] for line in lines]
    assert len(rows) > 100
    assert [row for row in rows if len(row) != 4 or not row[2] or not row[3]] == []
    for block in text.split("\n<code>")[1:]:
        address, _, below = block.partition("</code>")
        named = re.findall(r"^\| `([\w-]+)` \| path ", below.partition("\n## ")[0], re.MULTILINE)
        assert named == re.findall(r"{(\w+)}", address)
    assert {key for body in BODIES for key in body.model_fields} <= {row[0].strip("`") for row in rows}


def test_examples_in_python_print_what_the_pages_show(tmp_path: Path) -> None:
    pages = [page for page in sorted(DOCS.rglob("*.md")) if page.name != "library.md"]  # which test_readme.py plays
    played = 0
    for page in pages:
        text = page.read_text("utf-8")
        folder = tmp_path / page.relative_to(DOCS).with_suffix("")
        folder.mkdir(parents=True, exist_ok=True)
        for code, name in FILES.findall(text):
            (folder / name).write_text(code, "utf-8")
        for code, shown in EXAMPLES.findall(text):
            own = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), *filter(None, sys.path)))}
            words = [sys.executable, "-c", code]
            done = subprocess.run(words, cwd=ROOT, env=own, capture_output=True, text=True, check=False)
            assert (done.stdout.strip(), done.returncode) == (shown.strip(), 0), done.stderr
            played += 1
    assert played > 1


def test_the_page_on_own_classes_explains_each_method_that_they_write() -> None:
    text = (DOCS / "how-to/extensions.md").read_text("utf-8")
    files = FILES.findall(text)
    assert [name for _, name in files] == ["my_policy.py", "my_mechanism.py", "my_response.py", "my_environment.py"]
    for code, name in files:
        (section,) = [part for part in text.split("\n## ") if f"\n# {name}\n" in part]
        told = " ".join(re.findall(r"^\*\*(.*?)\*\*", section, re.MULTILINE))
        for method in re.findall(r"^    def ([a-z]\w*)\(", code, re.MULTILINE):
            assert f"`{method}" in told, (name, method)


def test_a_page_that_loads_something_from_another_host_is_an_error() -> None:
    check = generator().on_post_page
    for fine in ('<img src="../pictures/a.svg">', '<a href="https://arxiv.org/abs/1905.08023">a paper</a>'):
        assert check(fine, page="index", config=None) == fine
    for bad in ('<script src="https://cdn.example/a.js">', '<link href="//fonts.example/a" rel="stylesheet">'):
        with pytest.raises(ValueError, match=r"index loads .* from another host"):
            check(f"<p>{bad}</p>", page="index", config=None)


def test_a_broken_link_or_heading_fails_the_build(tmp_path: Path) -> None:
    """A small site with the settings of mkdocs.yml. `--quiet` would hide the warnings from the strict build."""
    from mkdocs.commands.build import build  # noqa: PLC0415 - half a second, in every process that collects
    from mkdocs.config import load_config  # noqa: PLC0415
    from mkdocs.exceptions import Abort  # noqa: PLC0415

    recipe = (ROOT / "Makefile").read_text("utf-8").partition("\ndocs:")[2].partition("\n\n")[0]
    assert "mkdocs build --strict\n" in recipe
    (tmp_path / "docs").mkdir()
    for text, broken in (("# A\n[a](#a)", 0), ("# A\n[a](b.html)", 1), ("# A\n[a](#b)", 1), ("# A\n[a](../b)", 1)):
        (tmp_path / "docs" / "index.md").write_text(text)
        own = {"docs_dir": str(tmp_path / "docs"), "site_dir": str(tmp_path / "site")}
        bare = {"nav": ["index.md"], "hooks": [], "plugins": [], "extra_css": [], "theme": {"name": "mkdocs"}}
        config = load_config(str(ROOT / "mkdocs.yml"), **own, **bare)
        if broken:
            with pytest.raises(Abort, match="1 warning"):
                build(config)
        else:
            build(config)
