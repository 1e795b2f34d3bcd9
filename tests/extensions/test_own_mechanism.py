"""Tests that all parties compute with a mechanism of the user's own, and that a party that lacks it says so."""

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter
from typer.testing import CliRunner

import distrust
from distrust.common.bandit.statistics import Reward
from distrust.common.dp.calculator.query import PrivacyQuery
from distrust.common.dp.mechanisms import AnyMechanism, Mechanism, plan
from distrust.common.errors import BadParameter, ProtocolError, Unavailable
from distrust.common.extensions import Extension
from distrust.lab.__main__ import app
from distrust.lab.play import in_process
from distrust.lab.play.lock_step import in_lock_step, play_together
from distrust.lab.play.result import Result
from distrust.lab.play.run_file import BadRunFile, RunFile
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import Stack
from distrust.server.dashboard.calculator import question
from tests.support.extension_package import MECHANISM, STREAM, Own, run_of
from tests.support.forked import forking
from tests.support.http_runs import over_http

GROUP = "distrust.mechanisms"
WIRE: TypeAdapter[Mechanism] = TypeAdapter(AnyMechanism)


def read(name: str, words: Mapping[str, Any] = {"epsilon": 8.0}, run: str = "own", horizon: int = 700) -> RunFile:
    world = {"name": "bernoulli", "means": [0.05, 0.95]}
    return run_of(world, run, horizon, mechanism={"name": name, **words})


@pytest.mark.parametrize("form", ["{}-twofold", "{}:Twofold"])
def test_it_protects_in_process_and_the_result_says_where_it_is_from(form: str, own: Own, tmp_path: Path) -> None:
    module = own(MECHANISM, GROUP, {"twofold": "Twofold"})
    name = form.format(module)
    assert module not in sys.modules
    result = in_process.run(read(name))
    source = hashlib.sha256((tmp_path / f"{module}.py").read_bytes()).hexdigest()[:12]
    origin = Extension(kind="mechanism", name=name, distribution=f"{module}-dist", version="1.2.3", source=source)
    assert (result.chosen, result.mechanism) == (1, name)
    assert result.extensions == (origin,)


def test_the_wire_gives_back_the_same_value_in_its_class(own: Own) -> None:
    spec = read(f"{own(MECHANISM, GROUP, {'twofold': 'Twofold'})}-twofold").config.mechanism
    made = plan(spec, clients=100, min_survivors=90, min_honest=80, overflow_probability=1e-6, statistic=Reward())
    assert (made.privacy().promise.model, made.privacy().promise.epsilon) == ("local", pytest.approx(4.0))
    assert WIRE.validate_json(WIRE.dump_json(made)) == made
    assert WIRE.validate_python(made.model_dump(mode="json")) == made
    assert type(WIRE.validate_json(made.model_dump_json())) is type(made)
    with pytest.raises(ValueError, match="scale of the noise"):
        WIRE.validate_python({**made.model_dump(mode="json"), "precision": 2**40, "modulus": 2**60})


def stream_run(**mechanism: Any) -> RunFile:
    """Return a run of ten batches by a policy that asks for prefix sums."""
    world = {"name": "contextual-synthetic", "arms": 4, "dimension": 2}
    policy = {"name": "linucb", "batch": 20, "features": 2}
    return run_of(world, horizon=200, policy=policy, mechanism=mechanism, intermediary={})


def released(result: Result) -> np.ndarray:
    """Return the vectors that each round released, shape (rounds, D)."""
    return np.array([cohort.estimate for record in result.rounds for cohort in record.cohorts])


def test_a_stream_of_its_own_releases_prefix_sums_and_the_policy_takes_them_as_such(own: Own) -> None:
    """Without noise, prefix sums are the running totals of `identity`'s batches, and clients choose the same arms."""
    file = stream_run(name=f"{own(STREAM, GROUP, {})}:Running", batches=10)
    plain = stream_run(name="identity", precision=1000)
    own_result, plain_result = in_process.run(file), in_process.run(plain)
    assert own_result.fault is None
    np.testing.assert_allclose(released(own_result), np.cumsum(released(plain_result), axis=0), atol=1e-9)
    assert own_result.regret.final == pytest.approx(plain_result.regret.final, abs=1e-9)
    assert (in_lock_step(file), in_lock_step(plain)) == (False, True)  # its counter adds one stream at a time
    with pytest.raises(BadParameter, match="run files"):
        play_together([file])


@pytest.mark.slow
def test_over_http_a_stream_of_its_own_releases_what_one_process_does(own: Own, tmp_path: Path) -> None:
    file = stream_run(name=f"{own(STREAM, GROUP, {})}:Running", batches=10)
    with forking(), Stack(DataDir(tmp_path / "data"), 0, file.extensions) as stack:
        served = over_http(stack, file)
    assert released(served).tolist() == released(in_process.run(file)).tolist()


def test_a_stream_that_cannot_count_is_refused(own: Own) -> None:
    with pytest.raises(BadRunFile, match="it counts a stream, so it needs nodes, counter of its own"):
        stream_run(name=f"{own(STREAM, GROUP, {})}:Uncounted", batches=10)


@pytest.mark.slow
def test_over_http_the_sums_through_each_intermediary_are_those_of_one_process(own: Own, tmp_path: Path) -> None:
    module = own(MECHANISM, GROUP, {"twofold": "Twofold"})
    vias = ("shuffler", "aggregator")
    files = [read(f"{module}:Twofold", {"epsilon": 8.0, "via": via}, run=via, horizon=250) for via in vias]
    with forking(), Stack(DataDir(tmp_path / "data"), 0, files[0].extensions) as stack:
        results = [over_http(stack, file) for file in files]
    for served, file in zip(results, files, strict=True):
        here = in_process.run(file)
        assert [record.cohorts for record in served.rounds] == [record.cohorts for record in here.rounds]
        assert served.guarantee == here.guarantee
        assert served.extensions == here.extensions != ()


@pytest.mark.slow
def test_a_server_or_a_fleet_that_has_it_not_says_so(own: Own, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = own(MECHANISM, GROUP, {"twofold": "Twofold"})
    file, without = read(f"{module}-twofold"), ":".join(path for path in sys.path if path != str(tmp_path))
    with forking(), Stack(DataDir(tmp_path / "with"), 0) as stack:
        monkeypatch.setenv("PYTHONPATH", without)
        missing = rf"the fleet [12] ended .*(\n.*)*mechanism.name = '{module}-twofold'"
        with pytest.raises(ProtocolError, match=missing):
            over_http(stack, file)
    gone = pytest.raises(Unavailable, match=f"the server cannot use {module}-twofold: .*that is installed here")
    with forking(), Stack(DataDir(tmp_path / "without"), 0) as stack, gone:
        over_http(stack, file)


def answer(*words: str) -> dict[str, Any]:
    """Return what `distrust` prints as JSON."""
    shown = CliRunner().invoke(app, [*words, "--json", "-"])
    assert shown.exit_code == 0, shown.output
    result: dict[str, Any] = json.loads(shown.stdout)
    return result


@pytest.mark.parametrize("form", ["{}-twofold", "{}:Twofold"])
def test_the_commands_privacy_and_audit_take_it(form: str, own: Own) -> None:
    """It promises half the ε that is asked for, of which one message discloses nearly all."""
    name = form.format(own(MECHANISM, GROUP, {"twofold": "Twofold"}))
    shown = answer("privacy", name, "--n", "20", "--epsilon", "2")
    assert shown["exact"]["guarantee"]["epsilon"] == pytest.approx(1.0)
    result = answer("audit", name, "--n", "1", "--epsilon", "2", "--trials", "20000", "--seed", "3")
    assert (result["claim"], result["violated"]) == (pytest.approx(1.0), False)
    assert result["lower"] > 0.5


def test_the_functions_privacy_and_audit_take_it(own: Own) -> None:
    first, second = (f"{own(MECHANISM, GROUP, {})}:Twofold" for _ in range(2))
    assert distrust.privacy(first, n=20, epsilon=2.0).figures["exact"].promise.guarantee.epsilon == pytest.approx(1.0)
    assert not distrust.audit(second, n=1, epsilon=2.0, trials=20_000, seed=3).violated


def test_a_question_of_another_party_imports_no_module() -> None:
    with pytest.raises(BadParameter, match="mechanism = 'this:s': is not listed here"):
        PrivacyQuery(clients=20, epsilon=2.0).planned("this:s", "exact")
    with pytest.raises(BadParameter, match="mechanism = 'this:s': must be one of identity"):
        question({"mechanism": "this:s"})
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Fraction", "it must be a subclass of distrust.common.dp.mechanisms.families.base.Mechanism"),
        ("Silent", "Silent lacks error, plan, privacy"),
        ("Modelless", "it needs `model`, one of none, central, local, shuffle, distributed"),
        ("Nameless", "Nameless.plan made a value named 'another'"),
        ("Nothing", "cannot be imported: AttributeError"),
    ],
)
@pytest.mark.few(3)
def test_a_class_that_cannot_be_one_is_refused_with_what_it_lacks(name: str, says: str, own: Own) -> None:
    module = own(MECHANISM, GROUP, {})
    with pytest.raises((BadRunFile, BadParameter)) as refused:
        in_process.run(read(f"{module}:{name}"))
    assert str(refused.value).startswith(f"mechanism.name = '{module}:{name}': ")
    assert says in str(refused.value)


def test_the_words_are_checked_by_the_facts_that_it_states(own: Own) -> None:
    module = own(MECHANISM, GROUP, {"twofold": "Twofold"})
    for more, says in (
        ({}, "mechanism.epsilon is missing: must lie in"),
        ({"epsilon": 1.0, "delta": 1e-6}, "mechanism.delta = 1e-06: .* has none: leave it out"),
        ({"epsilon": 1.0, "scale": 2.0}, "mechanism.scale = 2.0: .* has none"),
        ({"epsilon": 1.0, "batches": 2}, "mechanism.batches = 2: .* has none"),
        ({"epsilon": 1.0, "noise": "continuous"}, "mechanism.noise = 'continuous': .* on the grid only"),
    ):
        with pytest.raises(BadParameter, match=says):
            read(f"{module}-twofold", more)
