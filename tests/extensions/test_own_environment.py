"""Tests that an environment of the user's own plays like ours, and that an unusable one is refused by what it lacks."""

import hashlib
import sys
from pathlib import Path

import pytest

from distrust.client.environments import ENVIRONMENTS, read_spec
from distrust.client.fleet.settings import FleetSettings
from distrust.common.errors import BadParameter
from distrust.common.extensions import Extension
from distrust.lab.play import in_process
from distrust.lab.play.run_file import BadRunFile
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import Stack
from distrust.lab.sweep.cells import Cell, cell_digest, play_cell
from distrust.lab.sweep.experiment import Experiment
from distrust.lab.sweep.row import Row
from tests.support.extension_package import ENVIRONMENT, Own, install, run_of
from tests.support.forked import forking
from tests.support.http_runs import over_http

GROUP = "distrust.environments"


@pytest.fixture(autouse=True)
def package(own: Own) -> str:
    return own(ENVIRONMENT, GROUP, {"coins": "Coins"})


@pytest.mark.parametrize("form", ["{}-coins", "{}:Coins"])
def test_it_plays_in_process_and_the_result_says_where_it_is_from(form: str, package: str, tmp_path: Path) -> None:
    name = form.format(package)
    assert package not in sys.modules
    result = in_process.run(run_of({"name": name, "gap": 0.6}))
    source = hashlib.sha256((tmp_path / f"{package}.py").read_bytes()).hexdigest()[:12]
    origin = Extension(kind="environment", name=name, distribution=f"{package}-dist", version="1.2.3", source=source)
    assert (result.chosen, result.best, result.environment) == (1, 1, name)
    assert result.regret.final == pytest.approx(0.6 * result.pulls[0])
    assert result.extensions == (origin,)
    assert result.model_dump(mode="json")["extensions"][0]["version"] == "1.2.3"


def test_a_result_without_any_looks_as_it_always_did() -> None:
    result = in_process.run(run_of({"name": "bernoulli", "means": [0.1, 0.9]}))
    assert "extensions" not in result.model_dump()


def test_a_contextual_one_plays_and_its_long_contexts_are_clipped_and_counted(package: str) -> None:
    policy, plain = {"name": "linucb", "batch": 40}, {"name": "identity"}
    file = run_of({"name": f"{package}:Shops"}, horizon=400, policy=policy, mechanism=plain, intermediary={})
    result = in_process.run(file)
    assert (result.clipped, result.hidden) == (300, 400)
    assert 0 < result.regret.final < 0.25 * 400


@pytest.mark.slow
def test_over_http_the_fleets_play_it_and_the_sums_are_those_of_one_process(package: str, tmp_path: Path) -> None:
    file = run_of({"name": f"{package}:Coins"}, horizon=250)
    with forking(), Stack(DataDir(tmp_path / "data"), 0) as stack:
        served = over_http(stack, file)
    here = in_process.run(file)
    assert [record.cohorts for record in served.rounds] == [record.cohorts for record in here.rounds]
    assert served.extensions == here.extensions != ()


def test_a_fleet_that_has_it_not_says_what_is_missing_where() -> None:
    settings = FleetSettings(environment='{"name": "their-coins", "seed": 5}')
    with pytest.raises(BadParameter, match=r"environment.name = 'their-coins': .* installed here .*distrust\.envir"):
        settings.world()
    with pytest.raises(BadParameter, match=r"'their_module:Coins': their_module:Coins cannot be imported: ModuleNotF"):
        FleetSettings(environment='{"name": "their_module:Coins", "seed": 5}').world()


def test_it_plays_in_a_sweep_whose_rows_depend_on_its_source(package: str, tmp_path: Path) -> None:
    table = {
        "horizon": 700,
        "policy": {"first_batch": 6},
        "mechanism": {"name": "identity"},
        "environment": {"name": f"{package}:Coins"},
    }
    words = {"name": "own", "title": "own", "source": "", "claim": "", "repetitions": 1, "points": 2, "run": table}
    experiment = Experiment.model_validate({**words, "panels": [{"label": "all"}], "series": [{"label": "all"}]})
    cell = Cell("all", "all", 0)
    row = play_cell(experiment, cell)
    assert isinstance(row, Row), row
    assert (row.chosen, row.digest) == (1, cell_digest(experiment, cell))
    file = tmp_path / f"{package}.py"
    file.write_text(file.read_text("utf-8") + "BETTER = True\n", "utf-8")
    ENVIRONMENTS._imported.clear()  # as another process finds it
    assert cell_digest(experiment, cell) != row.digest


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("World", "it must be a subclass of distrust.client.environments.base.EnvironmentSpec"),
        ("np", "it must be a subclass of distrust.client.environments.base.EnvironmentSpec"),
        ("Seedless", "it needs a field `seed: Seed`"),
        ("Unbuilt", "Unbuilt lacks build"),
        ("Unnamed", "Unnamed needs a field `name: str`"),
        ("OneArm", "1 arms with means of shape (1,): at least 2 arms"),
        ("Unfinished", "object lacks name, arms, means, best, rewards"),
        ("Nothing", "cannot be imported: AttributeError"),
    ],
)
@pytest.mark.few(4)
def test_a_class_that_cannot_be_one_is_refused_with_what_it_lacks(name: str, says: str, package: str) -> None:
    with pytest.raises((BadRunFile, BadParameter)) as refused:
        run_of({"name": f"{package}:{name}"})
    assert str(refused.value).startswith(f"environment.name = '{package}:{name}': ")
    assert says in str(refused.value)


def test_its_own_numbers_are_checked_like_ours(package: str) -> None:
    with pytest.raises(BadRunFile, match=r"environment.gapp = 0.1: unknown key, did you mean gap\?"):
        run_of({"name": f"{package}:Coins", "gapp": 0.1})


def test_a_name_of_two_packages_is_refused(package: str, tmp_path: Path) -> None:
    install(tmp_path, f"{package}b", ENVIRONMENT, {GROUP: {f"{package}-coins": f"{package}b:Coins"}})
    with pytest.raises(BadParameter, match=f"is offered by {package}-dist and {package}b-dist: one of them must go"):
        read_spec({"name": f"{package}-coins", "seed": 1})


def test_one_of_ours_cannot_be_replaced(package: str, tmp_path: Path) -> None:
    install(tmp_path, f"{package}c", ENVIRONMENT, {GROUP: {"bernoulli": f"{package}c:Coins"}})
    assert type(read_spec({"name": "bernoulli", "means": [0.1, 0.2]})).__module__ == "distrust.client.environments.arms"
