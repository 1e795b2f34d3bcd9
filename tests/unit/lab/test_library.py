"""Tests of `import distrust` in a notebook: runs from any form of a run file, data frames, HTML."""

import asyncio
import re
import threading
import typing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distrust
from distrust.common.errors import BadParameter
from distrust.common.notebook import MOST_ROWS, Card, HtmlTable, Shown
from distrust.lab.play.result import COLUMNS, CohortResult, Result
from distrust.lab.play.run_file import load
from distrust.lab.services.connection import Connection, connect, done, transcripts_wanted
from distrust.lab.stack.stack import Urls

TABLE: dict[str, Any] = {
    "run": "trial",
    "horizon": 3_000,
    "mechanism": {"name": "distributed-polya", "epsilon": 1.0},
    "environment": {"name": "bernoulli", "seed": 4, "means": [0.1, 0.5, 0.9]},
}
TEXT = """
run = "trial"
horizon = 3000
mechanism = {name = "distributed-polya", epsilon = 1.0}
environment = {name = "bernoulli", seed = 4, means = [0.1, 0.5, 0.9]}
"""
SEEDED = {"noise_seed": 7}


@pytest.fixture(scope="module")
def result() -> Result:
    return distrust.run(TABLE, unsafe=SEEDED)


class Tags(HTMLParser):
    """Opens and closes tags, and keeps the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.text, self.seen = list[str](), "", set[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen |= {tag, *(name for name, _ in attrs)}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def read(html: str) -> str:
    """Return the text of HTML that is well-formed and has no script, no address and no colour."""
    tags = Tags(html)
    assert tags.open == []
    assert tags.seen <= {"div", "p", "strong", "table", "caption", "thead", "tbody", "tr", "th", "td", "style", "scope"}
    assert "color" not in html.replace("color:inherit", "")
    return tags.text


def test_a_dictionary_a_path_a_text_and_a_run_file_are_one_run(tmp_path: Path, result: Result) -> None:
    path = tmp_path / "trial.toml"
    path.write_text(TEXT, "utf-8")
    arrays = TABLE | {"horizon": np.int64(3_000), "environment": TABLE["environment"] | {"means": (0.1, 0.5, 0.9)}}
    arrays["environment"]["means"] = np.array(arrays["environment"]["means"])
    untimed = {"seconds", "clients_per_second"}
    for source in (arrays, path, str(path), TEXT, TEXT.strip(), distrust.parse(TEXT)):
        assert distrust.run(source, unsafe=SEEDED).model_dump(exclude=untimed) == result.model_dump(exclude=untimed)


def test_a_run_file_is_read_by_the_name_of_its_path(tmp_path: Path) -> None:
    path = tmp_path / "trial.toml"
    path.write_text(TEXT, "utf-8")
    assert distrust.read(str(path)).config == distrust.read(path).config == distrust.parse(TEXT).config
    with pytest.raises(distrust.BadRunFile, match=r"nothing\.toml: No such file or directory"):
        distrust.read(str(tmp_path / "nothing.toml"))


def test_every_error_that_a_connection_documents_is_public_and_a_protocol_error() -> None:
    for kind in re.findall(r"\b(Un[a-z]+|WrongCohort)\b", str(distrust.Connection.__doc__)):
        assert issubclass(getattr(distrust, kind), distrust.ProtocolError)
    for kind in (distrust.BadParameter, distrust.BadRunFile, distrust.RunFailed, distrust.Unavailable):
        assert issubclass(kind, distrust.ProtocolError)


def test_the_unsafe_keyword_takes_the_place_of_the_files_table() -> None:
    assert load(TABLE).config.unsafe is None
    again = load(load(TABLE | {"unsafe": {"noise_seed": 1}}), SEEDED)
    assert again.config.unsafe is not None
    assert again.config.unsafe.noise_seed == 7


@pytest.mark.parametrize(
    ("source", "why"),
    [
        pytest.param(TABLE | {"horizn": 1}, "horizn", id="a-misspelt-key"),
        pytest.param(TABLE | {"unsafe": {"noise_seed": -1}}, r"unsafe.noise_seed = -1: must be at least 0", id="seed"),
        pytest.param("missing.toml", "missing.toml: No such file", id="a-path"),
        pytest.param("trial", "not TOML", id="neither-a-path-nor-TOML"),
        pytest.param(7, "source = 7: must be a dictionary, a path, TOML text or a RunFile", id="a-number"),
        pytest.param(None, "source is missing: must be a dictionary", id="nothing"),
        pytest.param([1], "source = <class 'list'>: must be a dictionary", id="a-list"),
    ],
)
def test_what_is_no_run_file_is_refused_with_its_name(source: Any, why: str) -> None:
    with pytest.raises((distrust.BadRunFile, BadParameter), match=why):
        distrust.run(source)


def test_every_frame_has_its_columns_and_the_runs_numbers(result: Result) -> None:
    frames = {name: result.frame(name) for name in COLUMNS}
    for name, frame in frames.items():
        assert list(frame.columns) == list(COLUMNS[name])
    rounds = frames["rounds"]
    assert rounds["regret"].iloc[-1] == result.regret.curve[len(result.rounds) - 1][1]
    assert rounds["clients"].sum() == sum(cohort.clients for record in result.rounds for cohort in record.cohorts)
    assert frames["arms"]["pulls"].tolist() == result.pulls
    assert frames["arms"].set_index("arm")["chosen"].idxmax() == result.chosen
    assert len(frames["cohorts"]) == rounds["cohorts"].sum()
    assert set(frames["ledger"]["kind"]) == {"none"}


def test_the_last_interval_of_each_arm_is_the_one_that_the_server_shows(result: Result) -> None:
    last = {interval.arm: interval for interval in result.formed}
    shown = {arm.arm: (arm.batch, arm.mean, arm.lower, arm.upper) for arm in result.arms}
    assert {arm: (one.batch, one.mean, one.lower, one.upper) for arm, one in last.items()} == shown
    assert len(result.formed) == result.events.widths
    assert all(last[arm.arm].round == arm.eliminated for arm in result.arms if arm.eliminated is not None)


def test_an_unknown_table_is_refused_with_the_known_ones(result: Result) -> None:
    with pytest.raises(BadParameter, match="table = 'arm': must be one of rounds, arms, cohorts, intervals, ledger"):
        result.frame("arm")  # type: ignore[arg-type]


def test_a_results_html_has_its_promise_and_all_that_it_assumes_and_no_time() -> None:
    result = distrust.run(TABLE)
    text = read(result._repr_html_())
    assert "distributed pure DP, ε = 1 (exact calibration)" in text
    assert len(result.guarantee.assumptions) > 3
    assert all(assumption in text for assumption in result.guarantee.assumptions)
    assert " s in all" not in text
    assert re.fullmatch(r"<Result of trial, in-process: distributed pure DP, ε = 1 .*, regret [\d,.]+>", repr(result))


def test_an_unsafe_results_html_says_that_there_is_no_privacy(result: Result) -> None:
    text = read(result._repr_html_())
    assert "no privacy" in text
    assert "unsafe.noise_seed: the privacy noise can be computed by every party that knows the seed" in text


def test_a_failed_run_says_so_and_why_wherever_it_is_shown() -> None:
    leaving = {"fleet": {"dropout": 0.9}, "policy": {"first_batch": 6}}
    failed = distrust.run(TABLE | leaving, unsafe=SEEDED)
    assert failed.fault is not None
    assert f"failed: {failed.fault}" in repr(failed)
    assert failed.fault in read(failed._repr_html_())


def test_reports_comparisons_and_findings_show_what_the_commands_show() -> None:
    report = distrust.privacy("distributed-polya", n=100, epsilon=1.0)
    text = read(report._repr_html_())
    assert all(note in text for note in report.notes)
    assert all(label in text for label, _ in report.lines())
    assert report.frame().set_index("figure").loc["bits a client"].tolist() == [
        str(side.bits) for side in report.figures.values()
    ]
    comparison = distrust.compare(n=100, epsilon=1.0)
    text, frame = read(comparison._repr_html_()), comparison.frame()
    assert all(line[-1] in text for line in comparison.lines())
    assert frame["refused"].isna().sum() == len(comparison.lines()) < len(frame)
    finding = distrust.audit("local-laplace-discrete", n=1, epsilon=1.0, trials=2_000, seed=1)
    text = read(finding._repr_html_())
    assert finding.verdict in text
    assert "It cannot prove one" in text
    (row,) = finding.frame().to_dict("records")  # so that findings make a table
    assert (row["mechanism"], row["claim"]) == ("local-laplace-discrete", finding.claim)
    assert (row["lower"], row["violated"]) == (finding.lower, False)
    gradients = {"n": 1, "epsilon": 1.0, "secret": "arm", "arms": 3, "features": 2, "residual": "logistic"}
    assert distrust.audit("local-sphere", trials=2_000, seed=1, **gradients).dimension == 6


CALLS = [*("run", "sweep", "privacy", "compare", "audit", "inspect"), *("runs", "view", "rounds", "ledger", "start")]
CALLS += ["wait", "result", "cancel"]


@pytest.mark.parametrize("name", CALLS)
def test_what_a_call_returns_shows_itself_and_has_a_frame_by_the_one_base_class(name: str) -> None:
    for owner in (distrust, Connection):
        call = getattr(owner, name, None)
        if call is not None:
            kind = typing.get_type_hints(call)["return"]
            kind = typing.get_origin(kind) or kind
            assert issubclass(kind, Shown)
            assert {"frame", "__repr__", "_repr_html_"} & set(vars(kind)) == set()


def test_an_audit_in_a_notebook_takes_the_counter_examples_of_the_command() -> None:
    finding = distrust.audit(broken="laplace-for-half-the-range", n=1, trials=20_000, seed=1)
    assert finding.violated
    assert repr(finding).startswith("<Finding on laplace-for-half-the-range, broken on purpose (exact)")
    with pytest.raises(BadParameter, match=r"delta = 0\.1: the counter-example brings its own: leave it out"):
        distrust.audit(broken="laplace-for-half-the-range", n=1, delta=0.1)


def test_html_is_escaped_and_a_long_table_says_how_much_more_there_is() -> None:
    rows = [(str(number), "<script>alert(1)</script>") for number in range(MOST_ROWS + 3)]
    html = Card("<b>", [("a&b", '"x"')], [HtmlTable(("n", "<i>"), rows, words=("<i>",))], ["<u>", ""]).html()
    text = read(html)
    assert text.count("<script>") == MOST_ROWS
    assert "3 more rows" in text
    assert {"<b>", "a&b", '"x"', "<i>", "<u>"} <= set(text.splitlines())


def test_a_frame_without_pandas_names_the_extra(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"data frames need pandas: pip install 'distrust\[lab\]'"):
        result.frame()


EXPERIMENT: dict[str, Any] = {
    "name": "tiny",
    "title": "Tiny <experiment>",
    "source": "ours",
    "claim": "none",
    "repetitions": 2,
    "run": {"horizon": 900, "environment": {"name": "gaussian-easy", "arms": 3}, "mechanism": {"name": "identity"}},
    "panels": [{"label": "one"}],
    "series": [{"label": "SE"}, {"label": "UCB", "run": {"policy": {"name": "ucb1"}}}],
}


def test_a_sweep_of_a_dictionary_has_frames_and_shows_that_its_noise_is_seeded(tmp_path: Path) -> None:
    outcome = distrust.sweep(EXPERIMENT, out=tmp_path, jobs=1)
    rows, summary = outcome.frame(), outcome.frame("summary").set_index("series")
    assert rows["series"].tolist() == ["SE", "SE", "UCB", "UCB"]
    for series in ("SE", "UCB"):
        mine = rows[rows["series"] == series]["regret"]
        assert summary.loc[series, "regret"] == pytest.approx(mine.mean())
        assert summary.loc[series, "deviation"] == pytest.approx(mine.std())
    assert outcome.frame("confidence")["widths"].tolist() == [
        rows[rows["series"] == series]["widths"].sum() for series in ("SE", "UCB")
    ]
    text = read(outcome._repr_html_())
    assert "Tiny <experiment>" in text
    assert "repeatable, and not private" in text
    assert repr(outcome) == "<SweepOutcome of tiny: 4 rows, 0 cells failed>"
    with pytest.raises(BadParameter, match="table = 'row': must be one of rows, summary, confidence"):
        outcome.frame("row")  # type: ignore[arg-type]
    with pytest.raises(BadParameter, match="is loaded already: give quick and repetitions before"):
        distrust.sweep(outcome.experiment, repetitions=3, out=tmp_path)


def test_a_connection_does_not_show_its_tokens() -> None:
    shown = repr(Connection(Urls("http://a", "http://b", "http://c", "t0ken", "insp3ctor")))
    assert "http://a" in shown
    assert "t0ken" not in shown
    assert "insp3ctor" not in shown


@pytest.mark.parametrize(
    ("server", "words", "why"),
    [
        pytest.param(5, {}, "server = 5: must be an address or a data folder", id="a-number"),
        pytest.param("nowhere", {}, "must be an address, or the data folder", id="no-folder"),
        pytest.param("http://", {}, "server = 'http://': must be an address such as", id="no-host"),
        pytest.param("http://h", {"shuffler": "h:1"}, "shuffler = 'h:1': must be an address", id="no-scheme"),
        pytest.param(".", {"token": "t"}, "a data folder has all addresses and tokens", id="token-and-folder"),
    ],
)
def test_what_is_no_address_is_refused_before_any_call(server: Any, words: dict[str, Any], why: str) -> None:
    with pytest.raises(BadParameter, match=why):
        connect(server, **words)


def test_unsafe_is_a_dictionary() -> None:
    with pytest.raises(BadParameter, match="unsafe = 3: must be a dictionary"):
        distrust.run(TABLE, unsafe=3)  # type: ignore[arg-type]


def test_a_folder_without_services_says_how_to_start_them(tmp_path: Path) -> None:
    with pytest.raises(distrust.Unavailable, match=re.escape(f"start them with `distrust up --data {tmp_path}`")):
        distrust.connect(tmp_path)


def test_a_choice_of_transcripts_is_read_from_a_name_a_result_and_a_cohort(result: Result) -> None:
    cohort = result.rounds[1].cohorts[2]
    one = transcripts_wanted(cohort, None, None, 3)
    assert (one.run, one.round, one.cohort) == ("trial", 2, cohort.cohort)
    dotted = transcripts_wanted(CohortResult(cohort="a.1.b.12.0.3", arm=0, clients=2), None, None, 1)
    assert (dotted.run, dotted.round) == ("a.1.b", 12)
    assert (transcripts_wanted("trial", 4, None, 3).round, transcripts_wanted("trial", None, None, 3).round) == (4, 1)
    with pytest.raises(BadParameter, match="was played in process, without messages: play it over services"):
        transcripts_wanted(result, None, None, 3)
    with pytest.raises(BadParameter, match="limit = 0: must be at least 1"):
        transcripts_wanted("trial", None, None, 0)


def test_a_call_answers_also_where_an_event_loop_is_running() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    async def failing() -> int:
        raise BadParameter("x", 1, "no")

    async def notebook() -> int:
        with pytest.raises(BadParameter, match="x = 1: no"):
            done(failing())
        return done(answer())

    assert done(answer()) == asyncio.run(notebook()) == 42


def test_an_interruption_stops_what_a_call_in_a_notebook_began(monkeypatch: pytest.MonkeyPatch) -> None:
    began, stopped = threading.Event(), list[bool]()

    class InterruptedPool(ThreadPoolExecutor):
        """A pool whose waiting caller is interrupted once the work has begun."""

        def submit(self, *words: Any, **more: Any) -> Any:
            future = super().submit(*words, **more)

            def interrupted() -> None:
                began.wait()
                raise KeyboardInterrupt

            future.result = interrupted  # type: ignore[method-assign,assignment]
            return future

    async def endless() -> None:
        began.set()
        try:
            await asyncio.sleep(600)
        finally:
            stopped.append(True)

    async def notebook() -> None:
        with pytest.raises(KeyboardInterrupt):
            done(endless())

    monkeypatch.setattr("distrust.lab.services.connection.ThreadPoolExecutor", InterruptedPool)
    asyncio.run(notebook())
    assert stopped == [True]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: distrust.privacy("x"), "n is missing: must be given"),
        (lambda: distrust.privacy("identity", n=0), "n = 0: must lie in [1, 1000000]"),
        (lambda: distrust.compare(n=-1, epsilon=1.0), "n = -1: must lie in [1, 1000000]"),
        (lambda: distrust.audit("identity", n=0), "n = 0: must lie in [1, 1000000]"),
        (lambda: distrust.privacy("distributed-polya", n=10), "epsilon is missing: must lie in [0.0001, 50]"),
        (lambda: distrust.privacy("identity", n=10, survivors=11), "survivors = 11: must lie in [1, n = 10]"),
        (lambda: distrust.compare(n=9, epsilon=1.0, target_delta=2), "target_delta = 2: must lie in [1e-18, 1/2)"),
        (distrust.audit, "mechanism is missing: name one, or a counter-example as `broken`"),
        (lambda: distrust.audit(broken="none"), "broken = 'none': must be one of noise-for-everybody, "),
        (lambda: distrust.sweep("smoke", repetitions=0), "repetitions = 0: must be at least 1"),
        (lambda: distrust.audit("x", n=3), "mechanism = 'x': must be one of 'identity'"),
        (lambda: distrust.compare(n=10, epsilon=1.0, nope=3), "nope = 3: is no argument here; arguments are n"),
        (lambda: distrust.privacy("identity", 10), "arguments = 10: must be given by name, one of mechanism, n"),
        (lambda: distrust.privacy("identity", n="10"), "n = '10': must be a whole number"),
        (lambda: distrust.compare(n=10, epsilon="1"), "epsilon = '1': must be a number"),
        (lambda: distrust.audit("identity", n=True), "n = True: must be a whole number"),
    ],
    ids=[
        *("no-n", "no-client", "n-of-compare", "n-of-audit", "no-epsilon", "survivors", "target", "nothing", "broken"),
        *("repetitions", "mechanism", "unknown", "by-place", "text", "text-for-a-number", "truth-value"),
    ],
)
def test_a_wrong_argument_is_named_with_its_value_and_what_is_allowed(call: Callable[[], object], told: str) -> None:
    with pytest.raises(distrust.BadParameter, match=f"^{re.escape(told)}"):
        call()


def test_numbers_of_numpy_are_numbers() -> None:
    given = distrust.privacy("distributed-polya", n=np.int64(50), epsilon=np.float64(1.0))
    assert given.described() == distrust.privacy("distributed-polya", n=50, epsilon=1.0).described()
