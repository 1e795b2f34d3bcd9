"""Tests that a policy of the user's own decides like ours, also over HTTP, and that a party that lacks it says so."""

import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest

from distrust.common.errors import BadParameter, ProtocolError, Unavailable
from distrust.common.extensions import Extension
from distrust.common.protocol.run.config import RunConfig
from distrust.lab.play import in_process
from distrust.lab.play.run_file import BadRunFile, RunFile
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import Stack
from tests.support.extension_package import POLICY, Own, run_of
from tests.support.forked import forking
from tests.support.http_runs import over_http

GROUP = "distrust.policies"


def read(name: str, run: str = "own", **words: Any) -> RunFile:
    return run_of({"name": "bernoulli", "means": [0.1, 0.9, 0.2, 0.3]}, run, policy={"name": name, **words})


@pytest.mark.parametrize("form", ["{}-halving", "{}:Halving"])
def test_it_plays_in_process_and_the_result_says_where_it_is_from(form: str, own: Own, tmp_path: Path) -> None:
    module = own(POLICY, GROUP, {"halving": "HalvingSpec"})
    name = form.format(module).replace(":Halving", ":HalvingSpec")
    assert module not in sys.modules
    file = read(name, clients=80)
    result = in_process.run(file)
    source = hashlib.sha256((tmp_path / f"{module}.py").read_bytes()).hexdigest()[:12]
    origin = Extension(kind="policy", name=name, distribution=f"{module}-dist", version="1.2.3", source=source)
    assert (result.chosen, result.policy, len(result.rounds)) == (1, name, 2)
    assert [len(record.cohorts) for record in result.rounds] == [4, 2]
    assert {cohort.clients for one in result.rounds for cohort in one.cohorts} == {80}
    assert result.extensions == (origin,)


def test_its_configuration_goes_over_the_wire_and_back_with_its_digest(own: Own) -> None:
    config = read(f"{own(POLICY, GROUP, {'halving': 'HalvingSpec'})}-halving").config
    again = RunConfig.model_validate_json(config.model_dump_json())
    assert again == config
    assert again.digest() == config.digest()
    assert type(again.policy) is type(config.policy)


@pytest.mark.slow
def test_over_http_the_sums_are_those_of_one_process(own: Own, tmp_path: Path) -> None:
    """The policy is named by its entry point and by its module, in two runs on the same services."""
    module = own(POLICY, GROUP, {"halving": "HalvingSpec"})
    named, offered = read(f"{module}:HalvingSpec", clients=30), read(f"{module}-halving", "offered", clients=30)
    with forking(), Stack(DataDir(tmp_path / "data"), 0, named.extensions) as stack:
        results = [over_http(stack, file) for file in (named, offered)]
    for served, file in zip(results, (named, offered), strict=True):
        here = in_process.run(file)
        assert [record.cohorts for record in served.rounds] == [record.cohorts for record in here.rounds]
        assert served.extensions == here.extensions != ()


@pytest.mark.slow
def test_a_server_that_has_it_not_or_may_not_import_it_says_so(
    own: Own, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = own(POLICY, GROUP, {"halving": "HalvingSpec"})
    offered, named = read(f"{module}-halving"), read(f"{module}:HalvingSpec")
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("PYTHONPATH", ":".join(path for path in sys.path if path != str(tmp_path)))
        with forking(), Stack(DataDir(tmp_path / "data"), 0) as stack:
            missing = f"the server cannot use {module}-halving: .*or offered by a package that is installed here"
            with pytest.raises(Unavailable, match=missing):
                over_http(stack, offered)
            with pytest.raises(Unavailable, match=f"{module}:HalvingSpec': is not listed here: .*DISTRUST_EXTENSIONS"):
                over_http(stack, named)
        gone = pytest.raises(Unavailable, match=r"the server cannot use .* cannot be imported: ModuleNotFoundError")
        with forking(), Stack(DataDir(tmp_path / "other"), 0, named.extensions) as stack, gone:
            over_http(stack, named)


@pytest.mark.slow
def test_fleets_that_have_it_not_say_so(own: Own, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = own(POLICY, GROUP, {"halving": "HalvingSpec"})
    file = read(f"{module}-halving")
    with forking(), Stack(DataDir(tmp_path / "data"), 0) as stack:
        monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path != str(tmp_path)))
        with pytest.raises(
            ProtocolError, match=rf"the fleet [12] ended .*(\n.*)*policy.name = '{module}-halving'"
        ) as failed:
            over_http(stack, file)
    assert "or offered by a package that is installed here" in str(failed.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Halving", "it must be a subclass of distrust.common.specs.base.PolicySpec"),
        ("Homeless", "it needs POLICY, the class that plays it"),
        ("Silent", "Silent lacks event_probability"),
        ("Lost", "Nowhere cannot be imported: module"),
        ("Half", "World lacks of"),
        ("Made", "Made_ lacks active, intervals, latest_intervals, chosen, ask, tell, leftover"),
        ("Nothing", "cannot be imported: AttributeError"),
    ],
)
@pytest.mark.few(3)
def test_a_class_that_cannot_be_one_is_refused_with_what_it_lacks(name: str, says: str, own: Own) -> None:
    module = own(POLICY, GROUP, {})
    with pytest.raises((BadRunFile, BadParameter)) as refused:
        read(f"{module}:{name}")
    assert str(refused.value).startswith(f"policy.name = '{module}:{name}': ")
    assert says in str(refused.value)


def test_its_own_numbers_are_checked_like_ours(own: Own) -> None:
    module = own(POLICY, GROUP, {})
    with pytest.raises(BadRunFile, match=r"policy.client = 3: unknown key"):
        read(f"{module}:HalvingSpec", client=3)
    with pytest.raises(BadRunFile, match=r"policy.clients = 'many': must be a whole number"):
        read(f"{module}:HalvingSpec", clients="many")


def test_no_caller_makes_a_process_import_a_module() -> None:
    table = {"run": "x", "arms": 2, "horizon": 10, "mechanism": {"name": "identity"}}
    with pytest.raises(ValueError, match="is not listed here"):
        RunConfig.model_validate({**table, "policy": {"name": "this:s"}})
    assert "this" not in sys.modules
