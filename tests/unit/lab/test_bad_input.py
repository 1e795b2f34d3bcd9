"""Tests that the calculators refuse bad input in one line that names field, value and range, without a traceback."""

import math
import re

import pytest
from typer.testing import CliRunner

from distrust.common.errors import BadParameter, BudgetExceeded, two_spellings
from distrust.lab.__main__ import app

POLYA = "privacy distributed-polya --epsilon 1 --n 10"
BITS = "privacy shuffled-binomial --epsilon 1 --n 10"
AUDIT = "audit distributed-polya --epsilon 1"
BROKEN = "audit --broken noise-for-everybody"
SKELLAM = "privacy distributed-skellam --epsilon 1 --n 10"
ALL = "privacy --compare --n 10"
COMPOSED = "figure composition"

# Command, field, value as it is shown, what is allowed.
BAD = [
    ("privacy distributed-polya --epsilon 1 --n 0", "clients", "0", r"\[1, 1000000\]"),
    ("privacy distributed-polya --epsilon 1 --n -5", "clients", "-5", r"\[1, 1000000\]"),
    ("privacy distributed-polya --epsilon 1 --n 99999999999999999999", "clients", "9{20}", r"\[1, 1000000\]"),
    ("privacy distributed-polya --n 10", "--epsilon", None, r"\[0.0001, 50\]"),
    ("privacy distributed-polya --epsilon 1", "--n", None, "clients of the cohort"),
    ("privacy distributed-polya --n 1.5", "--n", "1.5", "must be a whole number"),
    ("privacy distributed-polya --n", "--n", "''", "needs a value"),
    ("privacy distributed-polya --zzz 3", "privacy", "'--zzz'", "no such option; `distrust privacy -h` lists them"),
    ("audit --mechanisms 3 --epsilo 1", "audit", "'--mechanisms'", "no such option"),
    (f"{POLYA} --epsilo 1", "privacy", "'--epsilo'", r"no such option, did you mean --epsilon\?; `distrust privacy"),
    (f"{POLYA} --low 3", "low", "3.0", "must be below high = 1"),
    (f"{POLYA} --low 3 --high 2", "high", "2.0", "must be above low = 3"),
    *((f"{POLYA} --epsilon {bad}", "mechanism.epsilon", bad, "finite") for bad in ("nan", "inf", "-inf")),
    *((f"{POLYA} --epsilon {bad}", "mechanism.epsilon", r"\S+", r"\[0.0001, 50\]") for bad in (0, -1, 1e-300, 1e300)),
    (f"{POLYA} --epsilon 1e-4 --dimension 2", "mechanism", "'distributed-polya'", "at most 10000"),
    ("audit tree --epsilon 1", "--delta", None, r"\[1e-18, 1/2\)"),
    (BITS, "--delta", None, r"\[1e-18, 1/2\)"),
    *((f"{BITS} --delta {bad}", "mechanism.delta", r"\S+", r"\[1e-18, 1/2\)") for bad in (0, -1, 0.5, 1, 1e-320)),
    (f"{BITS} --delta nan", "mechanism.delta", "nan", "finite"),
    (f"{POLYA} --dimension 0", "dimension", "0", r"\[1, 1000000\]"),
    (f"{POLYA} --dimension 10000000", "dimension", "10000000", r"\[1, 1000000\]"),
    (f"{POLYA} --precision 0", "mechanism.precision", "0", "at least 1"),
    (f"{POLYA} --precision 100000000000", "mechanism.precision", "100000000000", "at most 2147483648"),
    (f"{POLYA} --colluders -1", "colluders", "-1", r"\[0, \w+ = 10\]"),
    (f"{POLYA} --survivors 11", "survivors", "11", r"\[1, n = 10\]"),
    *((f"{POLYA} --target-delta {bad}", "target_delta", r"\S+", r"\[1e-18, 1/2\)") for bad in ("nan", 0, 0.5)),
    *((f"{SKELLAM} --scale {bad}", "mechanism.scale", r"\S+", "above 0") for bad in (0, -1)),
    (f"{SKELLAM} --scale nan", "mechanism.scale", "nan", "finite"),
    (f"{SKELLAM} --scale 0.5", "mechanism.scale", "0.5", "must"),
    (f"{POLYA} --scale 4", "mechanism.scale", "4.0", "has none: leave it out"),
    (f"{POLYA} --delta 0.1", "mechanism.delta", "0.1", "has none: leave it out"),
    (f"{POLYA} --batches 3", "mechanism.batches", "3", "has none: leave it out"),
    (f"{POLYA} --noise continuous", "mechanism.noise", "'continuous'", "on the grid only"),
    (f"{POLYA} --noise loud", "noise", "'loud'", "one of grid, continuous"),
    (f"{POLYA} --norm l3", "norm", "'l3'", "one of l1, l2, linf"),
    (f"{POLYA} --low nan", "low", "nan", "must lie in"),
    (f"{POLYA} --high inf", "high", "inf", "must lie in"),
    (f"{POLYA} --low 1", "low", "1.0", "must be below high = 1"),
    (f"{POLYA} --dropout 0.5", "dropout", "0.5", r"\[0, 1/2\)"),
    (f"{POLYA} --corrupt -0.1", "corrupt", "-0.1", r"\[0, 1/2\)"),
    ("privacy shuffled-gaussian --epsilon 1 --n 9 --delta 1e-5 --precision 40", "mechanism.precision", "40", "most 32"),
    ("privacy tree --epsilon 1 --n 10 --delta 1e-5 --batches 0", "mechanism.batches", "0", "at least 1"),
    (f"{ALL} --epsilon nan", "epsilon", "nan", r"\[0.0001, 50\]"),
    ("inspect x --server here --shuffler http://s --aggregator http://a", "server", "'here'", "an address such as"),
    (f"{ALL} --epsilon 1 --delta nan", "delta", "nan", r"\[1e-18, 1/2\)"),
    (f"{ALL} --epsilon 1 --contributions 0", "contributions", "0", r"\[1, 10000\]"),
    (f"{ALL} --epsilon 1 --target-delta 2", "target_delta", "2.0", r"\[1e-18, 1/2\)"),
    ("privacy '' --epsilon 1 --n 10", "mechanism", "''", "one of 'identity', "),
    (f"{AUDIT} --n 0", "clients", "0", r"\[1, 1000000\]"),
    (f"{AUDIT} --seed -1", "seed", "-1", "at least 0"),
    *((f"{AUDIT} --survivors {bad}", "survivors", str(bad), r"\[1, n = 10\]") for bad in (99, 0, -1)),
    (f"{AUDIT} --calibration best", "calibration", "'best'", "one of exact, paper"),
    (f"{AUDIT} --confidence 1", "confidence", "1.0", r"\[0.5, 1\)"),
    (f"{AUDIT} --via shuffler", "via", "'shuffler'", "must"),
    (f"{AUDIT} --http --seed 3", "seed", "3", "comes from the operating system"),
    (f"{BROKEN} distributed-polya", "mechanism", "'distributed-polya'", "leave it out"),
    (f"{AUDIT} --colluders 10", "colluders", "10", r"\[0, survivors = 10\)"),
    (f"{AUDIT} --trials -5", "trials", "-5", r"\[50, 100000000\]"),
    (f"{AUDIT} --via post", "via", "'post'", "must be"),
    (f"{BROKEN} --epsilon nan", "mechanism.epsilon", "nan", "finite"),
    (f"{BROKEN} --epsilon 1e9", "mechanism.epsilon", "1000000000.0", r"\[0.0001, 50\]"),
    (f"{BROKEN} --n 0", "clients", "0", r"\[1, 1000000\]"),
    ("audit --broken ''", "broken", "''", "one of noise-for-everybody, "),
    *((f"{COMPOSED} --delta {bad}", "delta", r"\S+", r"\[1e-18, 1/2\)") for bad in (0, -1, 0.5, 1e-320, "inf", "nan")),
    *((f"{COMPOSED} --epsilon {bad}", "epsilon", r"\S+", r"\[0.0001, 1\)") for bad in (0, -1, 1, 1e-300, "inf", "nan")),
    (f"{COMPOSED} --quick", "quick", "True", "leave it out"),
    (f"{COMPOSED} --results x.csv", "results", "'x.csv'", "leave it out"),
    (f"{COMPOSED} --backend dask", "backend", "'dask'", "leave it out"),
    (f"{COMPOSED} --jobs 2", "jobs", "2", "leave it out"),
    ("figure smoke --results x.csv --backend dask", "backend", "'dask'", "--results plays nothing"),
    ("figure smoke --results x.csv --jobs 2", "jobs", "2", "--results plays nothing"),
    ("figure smoke --backend mpi", "backend", "'mpi'", "must be one of loky, dask, ray"),
    ("figure mab-1 --epsilon 0.3", "epsilon", "0.3", "composition's alone"),
    ("figure mab-1 --results /tmp", "results", "'/tmp'", r"\.parquet or \.csv"),
    ("figure mab-1 --results nowhere.csv", "results", "'nowhere.csv'", "No such file"),
    ("figure ''", "figure", "''", "one of composition, ctx-1, ctx-2, ctx-bits, ctx-code, dlb-2a"),
    ("figure ../../etc/passwd", "figure", "'../../etc/passwd'", "one of composition, "),
    ("sweep smoke --repetitions 0", "repetitions", "0", "at least 1"),
    ("sweep smoke --quick --backend mpi", "backend", "'mpi'", "must be one of loky, dask, ray"),
    ("sweep smoke --quick --jobs -1", "jobs", "-1", "at least 1"),
    ("sweep smoke --quick --format xml", "format", "'xml'", "must be parquet or csv"),
    ("sweep smoke --quick --out /dev/null", "out", "'/dev/null/smoke-quick.*", "is no folder"),
    ("run x.toml --in-process --name A.B", "name", "'A.B'", "must be a name of 1 to 80 signs"),
    ("audit", "mechanism", None, "name one, or a counter-example with --broken"),
    ("list nothing", "kind", "'nothing'", "must be one of 'policies', 'mechanisms', "),
    ("inspect x --round 0", "--round", "0", "must be at least 1"),
    ("inspect", "RUN", None, "the run's name"),
    ("data mslr nofile --out x.csv", "files", "'nofile'", "cannot be read"),
    ("run x.toml --server http://s", "shuffler", None, "--server, --shuffler and --aggregator are given together"),
    (
        "fleet --runs first",
        "fleet",
        "'--runs'",
        r"no such option, did you mean --run\?; `distrust fleet -h` lists them",
    ),
    ("fleet --silent=yes", "--silent", "'yes'", "takes no value"),
    ("fleet --block", "--block", "''", "needs a value"),
    ("sweep ''", "experiment", "''", "one of ctx-1, ctx-2, ctx-bits, .*or the path of a .toml file"),
    ("health 127.0.0.1:8701", "url", "'127.0.0.1:8701'", "must be an address such as"),
    ("health ftp://127.0.0.1", "url", "'ftp://127.0.0.1'", "must be an address such as"),
    ("health http://127.0.0.1:port", "url", "'http://127.0.0.1:port'", "must be an address such as"),
    ("sweep /tmp", "experiment", "'/tmp'", "path of a .toml file"),
    ("errata --paper NONSENSE", "paper", "'NONSENSE'", "one of MAB, "),
    ("errata --paper ''", "paper", "''", "one of MAB, "),
]


@pytest.mark.parametrize(("line", "field", "value", "allowed"), BAD, ids=[one[0] for one in BAD])
def test_it_is_refused_in_one_line_with_field_value_and_range(
    line: str, field: str, value: str | None, allowed: str
) -> None:
    words = ["" if word == "''" else word for word in line.split()]
    refused = CliRunner().invoke(app, words)
    assert isinstance(refused.exception, BadParameter)
    assert refused.exception.field == field
    stated = "is missing" if value is None else f"= {value}"
    assert re.fullmatch(rf"{re.escape(field)} {stated}: .*{allowed}.*", str(refused.exception))


@pytest.mark.parametrize("value", [1.0000000001, 1.5, 1e9, 1 + 2**-52, math.inf])
def test_a_refused_value_never_prints_like_the_limit_that_it_exceeds(value: float) -> None:
    shown, limit = two_spellings(value, 1.0)
    assert float(shown) > float(limit)
    assert BudgetExceeded(value, 1, 1.0, 0.0).detail == (
        f"one contribution would cost ε = {shown} at δ = 0, and the budget is ε = {limit}"
    )


@pytest.mark.parametrize("word", ["x", "-1", "65001", "1.5", "٣", ""])
@pytest.mark.parametrize("command", ["up", "run x.toml", "demo"])
def test_a_bad_port_is_refused_by_option_value_and_range(command: str, word: str) -> None:
    refused = CliRunner().invoke(app, [*command.split(), "--port-base", word])
    assert isinstance(refused.exception, BadParameter)
    assert str(refused.exception) == f"port-base = {word!r}: must be a whole number from 0 to 65000"
