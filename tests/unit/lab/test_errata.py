"""Tests that each counter-example contradicts the printed claim, and that our resolution holds."""

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

from distrust.common.dp.mechanisms import MECHANISMS
from distrust.common.errors import BadParameter
from distrust.lab.__main__ import app
from distrust.lab.papers.errata import ROWS, checked_errata, errata_markdown
from distrust.lab.papers.erratum import CheckedErratum, Paper

ROOT = Path(__file__).parents[3]
ERRATA_PAGE = (ROOT / "docs/concepts/privacy/errata.md").read_text("utf-8")
PAGES = sorted((ROOT / "docs/concepts").rglob("*.md"))
DOCUMENT = "\n".join(page.read_text("utf-8") for page in PAGES)
TOLERANCE = 1e-9


@cache
def errata_by_key() -> dict[str, CheckedErratum]:
    return {one.key: one for one in checked_errata()}


def test_every_counter_example_contradicts_the_print_and_our_resolution_holds() -> None:
    for key, one in errata_by_key().items():
        if one.verdict == "harmless":
            assert one.computed == one.claimed, key
        else:
            assert one.computed > one.claimed * (1 + 1e-8), key
        assert one.ours <= one.claimed * (1 + TOLERANCE), key


def test_an_erratum_says_where_it_stands_and_where_its_resolution_lives() -> None:
    for key, one in errata_by_key().items():
        assert (ROOT / one.code).is_file(), key
        assert all((one.place, one.printed, one.wrong, one.setting, one.measure, one.instead)), key
        assert not one.printed.endswith("."), key
        assert json.loads(json.dumps(asdict(one), allow_nan=False))["key"] == key


def test_every_row_is_shown_and_every_paper_has_errata() -> None:
    assert list(ROWS) == list(errata_by_key())
    for paper in get_args(Paper):
        assert checked_errata(paper) == [one for one in errata_by_key().values() if one.paper == paper] != []


def test_an_unknown_paper_is_refused() -> None:
    with pytest.raises(BadParameter, match="paper"):
        checked_errata("XYZ")


def printed(*words: str) -> str:
    done = CliRunner().invoke(app, ["errata", *words])
    assert done.exit_code == 0
    return done.stdout


def test_the_command_speaks_to_people_to_programs_and_to_the_document() -> None:
    assert json.loads(printed("--json", "-")) == json.loads(
        json.dumps([asdict(one) for one in errata_by_key().values()])
    )
    assert {one["paper"] for one in json.loads(printed("--paper", "CTX", "--json", "-"))} == {"CTX"}
    table = printed("--paper", "FREE")
    assert "Pr[x̄ ≥ t]" in table
    assert "999.8" in table
    assert printed("--paper", "GLB", "--markdown").count("- **GLB") == len(checked_errata("GLB"))


def test_the_command_writes_a_file(tmp_path: Path) -> None:
    printed("--paper", "DLB", "--json", str(tmp_path / "dlb.json"))
    assert len(json.loads((tmp_path / "dlb.json").read_text("utf-8"))) == len(checked_errata("DLB"))


def test_the_document_shows_what_the_command_computes() -> None:
    shown = ERRATA_PAGE.split("<!-- errata -->\n")[1].split("<!-- /errata -->")[0]
    assert shown.strip() == errata_markdown(list(errata_by_key().values())).strip()


SHOWN_FIGURES = [
    [cell.strip(" `") for cell in row.strip("|").split("|")]
    for row in DOCUMENT.splitlines()
    if row.startswith("| `distrust privacy ")
]


@pytest.mark.parametrize("command", dict.fromkeys(command for command, _, _ in SHOWN_FIGURES))
@pytest.mark.few(12)
def test_figures_of_the_document_are_what_their_command_prints(command: str) -> None:
    done = CliRunner().invoke(app, command.split()[1:])
    shown = json.loads(done.stdout)
    for path, value in [places for name, *places in SHOWN_FIGURES if name == command]:
        result: Any = shown
        for step in path.split("."):
            result = result[int(step)] if isinstance(result, list) else result[step]
        assert f"{result:d}" == value if isinstance(result, int) else f"{result:.4g}" == value, path


def test_the_document_has_figures() -> None:
    assert len(SHOWN_FIGURES) > 10


def test_the_document_has_a_row_for_every_mechanism() -> None:
    rows = [line for line in DOCUMENT.splitlines() if line.startswith("| `")]
    assert [name for name in MECHANISMS if not any(row.startswith(f"| `{name}`") for row in rows)] == []


def test_the_document_names_files_that_are_there() -> None:
    named = {word for word in DOCUMENT.split("`") if word.startswith(("common/", "lab/", "client/", "server/"))}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
