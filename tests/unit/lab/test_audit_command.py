"""Tests that `distrust audit` prints one object, and that its exit status states the verdict."""

import json

import pytest
from typer.testing import CliRunner, Result

from distrust.common.errors import BadParameter
from distrust.lab.__main__ import app
from distrust.lab.audit import in_process
from distrust.lab.cli import audit as command


def audit(*words: str) -> Result:
    return CliRunner().invoke(app, ["audit", *words])


def test_a_kept_claim_exits_0_and_prints_one_object() -> None:
    honest = audit("distributed-polya", "--epsilon", "1", "--n", "8", "--seed", "3", "--json", "-")
    result = json.loads(honest.stdout)
    assert honest.exit_code == 0
    assert result["lower"] <= result["claim"]
    assert (result["trials"], result["counted"], result["violated"]) == (100_000, 50_000, False)


def test_a_broken_claim_exits_1_and_says_so() -> None:
    shown = audit("--broken", "misshifted-bits", "--seed", "3")
    assert shown.exit_code == 1
    assert "the claim is broken" in shown.stdout
    assert "broken on purpose" in shown.stdout


def test_survivors_of_an_audit_are_its_own_and_not_those_of_the_counter_examples_cohort() -> None:
    shown = audit("--broken", "noise-for-everybody", "--survivors", "8", "--trials", "2000", "--seed", "3")
    assert shown.exit_code in (0, 1), shown.output
    assert "broken on purpose" in shown.stdout


def test_the_same_seed_gives_the_same_finding() -> None:
    words = ("local-laplace-discrete", "--epsilon", "2", "--trials", "2000", "--seed", "4", "--json", "-")
    assert audit(*words).stdout == audit(*words).stdout


def test_vectors_of_a_norm_are_audited() -> None:
    words = ("--dimension", "3", "--norm", "l2", "--low", "-1", "--trials", "5000", "--seed", "4", "--json", "-")
    result = json.loads(audit("distributed-polya", "--epsilon", "2", *words).stdout)
    assert (result["dimension"], result["norm"], result["view"], result["cohorts"]) == (3, "l2", "sum", None)
    assert 0 < result["lower"] <= result["claim"]


def test_a_table_says_what_was_looked_at() -> None:
    words = ("--delta", "0.01", "--batches", "4", "--dimension", "2", "--norm", "l1", "--trials", "2000")
    shown = audit("tree", "--epsilon", "1", *words, "--seed", "4")
    assert shown.exit_code == 0
    assert "the stream" in shown.stdout
    assert "2 coordinates, bounded in l1" in shown.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(("--confidence", "1e-20"), "confidence = 1e-20: must lie in [0.5, 1)", id="no-confidence"),
        pytest.param(("--confidence", "nan"), "confidence = nan: must lie in [0.5, 1)", id="nan"),
        pytest.param(
            ("--confidence", "0.9999999", "--trials", "50"),
            "trials = 50: must be at least 55 for a bound above 0 at 0.9999999 and δ = 0",
            id="too-few-for-it",
        ),
        pytest.param(("--trials", "49"), "trials = 49: must lie in [50, 100000000]", id="too-few"),
    ],
)
@pytest.mark.parametrize("http", [(), ("--http",)], ids=["in-process", "http"])
def test_what_can_show_nothing_is_refused_before_anything_is_played(
    words: tuple[str, ...], message: str, http: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def played(*_: object) -> None:
        pytest.fail("played before it was refused")

    monkeypatch.setattr(in_process, "_contents", played)
    monkeypatch.setattr(command, "Stack", played)
    refused = audit("distributed-polya", "--epsilon", "1", *words, *http)
    assert isinstance(refused.exception, BadParameter)
    assert str(refused.exception) == message


def test_a_finding_says_how_far_its_trials_reach() -> None:
    """Fifty trials cannot contradict ε = 8, and say so; the table does not call that a clean bill."""
    words = ("local-laplace-discrete", "--epsilon", "8", "--trials", "50", "--seed", "1")
    result = json.loads(audit(*words, "--json", "-").stdout)
    assert 0 <= result["lower"] <= result["reach"] < result["claim"]
    shown = audit(*words)
    assert "too few trials to contradict the claim" in shown.stdout
    assert "nothing against the claim" not in shown.stdout


@pytest.mark.parametrize("word", [("--delta", "nan"), ("--dimension", "7"), ("--via", "shuffler"), ("--low", "-1")])
def test_a_counter_example_takes_no_option_that_it_would_ignore(word: tuple[str, str]) -> None:
    refused = audit("--broken", "misshifted-bits", "--trials", "100", *word)
    assert isinstance(refused.exception, BadParameter)
    assert str(refused.exception).startswith(word[0].removeprefix("--"))
