"""Tests that the pages of docs/ and the READMEs keep their line lengths, links, anchors and plain words."""

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "client/environments/data/README.md"
OURS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in OURS), TABLES, *sorted((ROOT / "docs").rglob("*.md"))]
WIDTH = 100
GENERATED = {
    ROOT / "docs" / name for name in re.findall(r'"(reference/[\w-]+\.md)"', (ROOT / "docs/generate.py").read_text())
}
"""Pages that the site has and the repository does not: they are written from the code."""
PEOPLE = re.compile(r"(?<![-\w])(nobody|somebody|anybody|everybody|whoever)(?![-\w])", re.IGNORECASE)
"""Words for people. A page names the party: client, shuffler, aggregator, server, operator."""


@cache
def prose(page: Path) -> list[str]:
    """Return the lines outside fences: output of commands is as wide as the command prints it."""
    kept = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return kept.splitlines()


def anchors(page: Path) -> set[str]:
    """Return the names that a page's headings have as link targets."""
    heads = [line.lstrip("#").strip() for line in prose(page) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_a_line_has_at_most_a_hundred_characters_but_in_tables() -> None:
    wide = [(page.name, line) for page in PAGES for line in prose(page) if len(line) > WIDTH]
    assert [(page, line) for page, line in wide if not line.startswith(("|", "!["))] == []


EVENT = re.compile(r"""(?<![\w.])(?:_?log\.\w+|write)\(\s*"([^"]+)"(?: if conflict else "([^"]+)")?""")
"""A call that logs: `log.info("event"`, `write("event"`."""


def test_operations_lists_every_log_event() -> None:
    rooms = ("aggregator", "client", "common", "server", "shuffler")
    texts = [path.read_text("utf-8") for room in rooms for path in (ROOT / room).rglob("*.py")]
    logged = {event for text in texts for result in EVENT.findall(text) for event in result if event}
    _, _, section = (ROOT / "docs/reference/operations.md").read_text("utf-8").partition("## Log events\n")
    rows = [line.split("|")[1] for line in section.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    assert logged == {event for row in rows for event in re.findall(r"`(\w+)`", row)}


def test_every_link_leads_to_a_file_and_to_a_heading() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", "\n".join(prose(page))):
            if link.startswith("https://"):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists() or target in GENERATED, (page.name, link)
            assert not anchor or anchor in anchors(target), (page.name, link)


def test_a_page_names_the_party_and_no_person() -> None:
    assert [(page.name, line) for page in PAGES for line in prose(page) if PEOPLE.search(line)] == []


def test_the_index_of_the_privacy_pages_names_each_of_them() -> None:
    index = (ROOT / "docs/concepts/privacy.md").read_text("utf-8")
    pages = sorted((ROOT / "docs/concepts/privacy").glob("*.md"))
    assert len(pages) > 10
    assert [page.name for page in pages if f"(privacy/{page.name})" not in index] == []


KEYED = re.compile(
    r"(?<![\w-])([A-Z]{2,5}),? "
    r"(?:Theorem|Lemma|Algorithm|eq\.|equation|section|Appendix|Figure|Table|Remark|Corollary|footnote)s? [A-I\d(]"
)
"""A key of a paper before the place in it."""

NAME = r"[A-Z][a-zéüößáèñ][\w’-]*"
DATED = re.compile(rf"((?:{NAME}(?:, | & ))*{NAME}(?: et al\.)?)\s\(?((?:19|20)\d\d)\b")
"""Authors and a year."""

DATES = {"Of 2000", "January 2004"}
"""Matches of DATED that are no papers."""


@cache
def sources() -> dict[str, str]:
    """Return the text of every module, experiment and page that may cite a paper, its line breaks taken out."""
    folders = ("aggregator", "benchmarks", "client", "common", "docs", "lab", "server", "shuffler", "tests")
    files = [file for folder in folders for kind in ("py", "toml", "md") for file in (ROOT / folder).rglob(f"*.{kind}")]
    return {file.relative_to(ROOT).as_posix(): " ".join(file.read_text("utf-8").split()) for file in files}


def papers() -> set[str]:
    """Return the keys of docs/reference/papers.md: first cells of its tables."""
    page = (ROOT / "docs/reference/papers.md").read_text("utf-8")
    return set(re.findall(r"^\| (.+?) \| ", page, re.MULTILINE)) - {"key"}


def test_every_key_of_a_paper_is_in_papers_md() -> None:
    result = {(name, key) for name, text in sources().items() for key in KEYED.findall(text)}
    assert {key for _, key in result} >= {"MAB", "DLB", "CTX", "FREE", "GLB"}
    assert [(name, key) for name, key in sorted(result) if key not in papers()] == []


def test_every_author_and_year_is_in_papers_md() -> None:
    result = {(name, f"{who} {year}") for name, text in sources().items() for who, year in DATED.findall(text)}
    cited = {(name, key.removeprefix("Source ")) for name, key in result if name != "docs/reference/papers.md"}
    assert len({key for _, key in cited}) > 30
    assert [(name, key) for name, key in sorted(cited) if key not in papers() | DATES] == []


def test_every_paper_of_papers_md_is_cited() -> None:
    text = " ".join(text for name, text in sources().items() if name != "docs/reference/papers.md")
    assert [key for key in sorted(papers()) if key not in text] == []


def test_no_file_outside_the_repository_is_cited() -> None:
    """Pages named in a docstring or on a page are there."""
    cited = {(name, page) for name, text in sources().items() for page in re.findall(r"[\w/.-]*\w\.md\b", text)}
    bases = (ROOT, ROOT / "docs", ROOT / "docs/concepts", ROOT / "docs/reference")
    pages = [*sorted((ROOT / "docs").rglob("*.md")), *GENERATED]
    names = {page.name for page in pages}
    assert len(names) == len(pages)  # so that a name alone says which page
    for name, page in sorted(cited):
        places = (base / page for base in (*bases, (ROOT / name).parent))
        assert page in names or any(place.exists() or place.resolve() in GENERATED for place in places), (name, page)


def test_the_first_page_has_five_pages_in_order_for_each_reader() -> None:
    text = (ROOT / "docs/index.md").read_text("utf-8")
    for reader in ("Researcher", "Privacy engineer", "Teacher", "Application developer"):
        section = text.partition(f"## {reader}\n")[2].partition("\n## ")[0]
        steps = re.findall(r"^(\d)\. \[.+?\]\((\S+?)\)", section, re.MULTILINE)
        assert [step for step, _ in steps] == list("12345")
        assert len({page for _, page in steps}) == 5


def test_the_glossary_has_the_terms_of_the_field() -> None:
    text = (ROOT / "docs/concepts/glossary.md").read_text("utf-8")
    terms = "cohort randomizer shuffler analyzer aggregator survivor neighbour roster ticket slot guarantee ledger"
    for term in (*terms.split(), "blanket", "clones", "modulus"):
        assert re.search(rf"^\| [^|]*\b{term}\b[^|]*\|", text, re.MULTILINE), term


def test_no_numbered_rule_of_another_document_is_cited() -> None:
    assert [name for name, text in sources().items() if re.search(r"\brules? \d+\b", text)] == []


def test_every_path_in_code_letters_is_there() -> None:
    folders = ("aggregator", "client", "common", "docs", "lab", "server", "shuffler", "tests")
    for page in PAGES:
        words = re.findall(r"`([\w./-]+)`", "\n".join(prose(page)))
        paths = {word for word in words if word.startswith(tuple(f"{folder}/" for folder in folders))}
        missing = [path for path in sorted(paths) if "NAME" not in path and not (ROOT / path).exists()]
        assert missing == [], page.name
