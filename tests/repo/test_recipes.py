"""Tests that the recipes of CONTRIBUTING.md work, by following them in a copy of the checkout."""

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from tests.support.checkout import ROOT, listed
from tests.support.picked import ALL, picked

PAGE = ROOT / "CONTRIBUTING.md"
EXAMPLES = Path(__file__).parent / "recipes"
TITLES = ("Add a policy", "Add a mechanism", "Add an environment", "Add a channel", "Add an endpoint")


@dataclass(frozen=True)
class Recipe:
    """One recipe for one new name, and the copy in which it is followed. Steps count from 1."""

    title: str
    name: str
    copy: Path

    @cached_property
    def steps(self) -> tuple[str, ...]:
        section = re.search(rf"^## {self.title}\n(.*?)(?=^## )", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
        assert section is not None, self.title
        return tuple(" ".join(step.split()) for step in re.split(r"^\d\. ", section[1], flags=re.MULTILINE)[1:])

    def files(self, step: int) -> list[str]:
        """Return the files that a step names, in its order."""
        return re.findall(r"`([\w./]+\.(?:py|md|toml))`", self.steps[step - 1])

    def tables(self, step: int) -> list[str]:
        """Return the lists and dictionaries that a step names."""
        return re.findall(r"`([A-Z]{3,})`", self.steps[step - 1])

    def commands(self, step: int) -> list[list[str]]:
        """Return the words of a step's commands, for this name."""
        result = re.findall(r"`((?:pytest|distrust) [^`]+)`", self.steps[step - 1])
        return [shlex.split(command.replace("NAME", self.name)) for command in result]

    def write(self, step: int, example: str) -> None:
        """Add the file that a step names first, from the folder of examples."""
        path = self.copy / self.files(step)[0].replace("NAME", self.name.replace("-", "_"))
        assert not path.exists()
        shutil.copy(EXAMPLES / example, path)

    def replace(self, path: str, old: str, new: str) -> None:
        """Replace the only place of a text."""
        file = self.copy / path
        text = file.read_text("utf-8")
        assert text.count(old) == 1, (path, old)
        file.write_text(text.replace(old, new), "utf-8")

    def insert(self, path: str, before: str, text: str) -> None:
        """Put text before the only line that starts with `before`, or at the end for an empty one."""
        file = self.copy / path
        old = file.read_text("utf-8")
        places = [match.start() for match in re.finditer(rf"^{re.escape(before)}", old, re.MULTILINE)]
        place = len(old) if not before else places[0]
        assert not before or len(places) == 1, (path, before, len(places))
        file.write_text(old[:place] + text + old[place:], "utf-8")

    def enlist(self, path: str, table: str, line: str) -> None:
        """Add an entry at the end of a list or dictionary of a module, on a line of its own or on the table's."""
        file = self.copy / path
        lines = file.read_text("utf-8").splitlines(keepends=True)
        statements = [one for one in ast.parse("".join(lines)).body if isinstance(one, ast.Assign | ast.AnnAssign)]
        (result,) = [one for one in statements if ast.unparse(one).split(" =")[0].split(":")[0] == table]
        assert result.end_lineno is not None
        last = lines[result.end_lineno - 1]
        if result.lineno < result.end_lineno:
            assert last[0] in ")]}"
            lines.insert(result.end_lineno - 1, f"    {line},\n")
        else:
            lines[result.end_lineno - 1] = re.sub(r",?([)\]}])$", lambda end: f", {line}{end[1]}", last)
        file.write_text("".join(lines), "utf-8")

    def import_(self, path: str, line: str) -> None:
        """Add an import before the first one of the project that comes after it."""
        file = self.copy / path
        lines = file.read_text("utf-8").splitlines(keepends=True)
        ours = [number for number, text in enumerate(lines) if text.startswith("from distrust.")]
        later = [number for number in ours if lines[number] > line]
        lines.insert(later[0] if later else ours[-1] + 1, f"{line}\n")
        file.write_text("".join(lines), "utf-8")

    def run(self, *words: str) -> str:
        """Run a module of Python in the copy and return what it prints."""
        home = {"HOME": str(self.copy), "PYTHONPATH": f"{self.copy / 'src'}:{self.copy}", "OPENBLAS_NUM_THREADS": "1"}
        home[ALL] = "1"  # a new policy is played on every mechanism
        home["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # none is needed, and importing them takes a second
        command = [sys.executable, "-m", *words]
        done = subprocess.run(command, cwd=self.copy, env=home, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def play(self, step: int) -> str:
        """Run a step's tests and ruff over the copy. Return the tests' output; pytest fails where it finds none."""
        self.run("ruff", "check", "--quiet", ".")
        commands = self.commands(step)
        assert commands
        return "".join(self.run(*words, "-p", "no:cacheprovider", "-q", "-rA") for words in commands)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the project's files, links kept."""
    for name in listed():
        if name.startswith("docs/figures/"):
            continue
        target = tmp_path / "copy" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target, follow_symlinks=False)
    assert (tmp_path / "copy/src/distrust/common").is_symlink()
    return tmp_path / "copy"


@pytest.mark.parametrize("title", TITLES)
def test_a_recipe_has_five_steps_and_names_files_that_are_there(title: str) -> None:
    recipe = Recipe(title, "new", ROOT)
    assert len(recipe.steps) == 5
    named = {file for step in range(1, 6) for file in recipe.files(step)}
    assert len(named) >= 4
    assert [file for file in sorted(named) if "NAME" not in file and not (ROOT / file).exists()] == []
    assert [file for file in sorted(named) if "NAME" in file and not (ROOT / file).parent.exists()] == []


POLICY = '''class ExploreThenCommitSpec(PolicySpec):
    """Explore, then commit: `explore` clients an arm, then the best of them until the horizon."""

    POLICY: ClassVar[str] = "distrust.server.policies.explore_then_commit:ExploreThenCommit"

    name: Literal["explore-then-commit"]
    explore: Annotated[int, Field(ge=1, le=LARGEST_COHORT)] = 500
    failure: Failure = 0.1

    def event_probability(self, size: RoundSize) -> float:
        return event_share(size.arms, 1, self.failure)

    @override
    def stated_failure(self, calibration: str, events: Iterable[tuple[float, int]]) -> float | None:
        return self.failure


'''

MAKE = """def explore_then_commit(arms: int, failure: float = 0.1) -> Policy:
    return ExploreThenCommit(arms=arms, explore=2000, failure=failure)


"""


def follow_policy(copy: Path) -> None:
    recipe = Recipe("Add a policy", "explore-then-commit", copy)
    (messages,), (specs,) = set(recipe.files(1)), recipe.tables(2)
    recipe.insert(messages, f"{specs}: ", POLICY)
    recipe.enlist(recipe.files(2)[0], specs, "ExploreThenCommitSpec")
    recipe.write(3, "explore_then_commit.py")
    contract, matrix = recipe.files(4)[:2]
    elimination, runs = recipe.tables(4)
    module = recipe.files(3)[0].replace("NAME", "explore_then_commit").removesuffix(".py").replace("/", ".")
    recipe.import_(contract, f"from distrust.{module} import ExploreThenCommit")
    recipe.insert(contract, f"{elimination} = ", MAKE)
    recipe.enlist(contract, elimination, 'pytest.param(explore_then_commit, id="explore-then-commit")')
    recipe.enlist(matrix, runs, '"explore-then-commit": Row(\'name = "explore-then-commit"\\nexplore = 300\')')
    output = recipe.play(5)
    assert "test_the_best_arm_survives_with_probability_above_one_minus_p[explore-then-commit]" in output
    assert "[explore-then-commit-on-distributed-polya]" in output


def follow_mechanism(copy: Path) -> None:
    recipe = Recipe("Add a mechanism", "local-response", copy)
    recipe.write(1, "local_response.py")
    (registry,), (classes,) = recipe.files(2), recipe.tables(2)
    recipe.import_(registry, "from distrust.common.dp.mechanisms.local.local_response import LocalResponse")
    recipe.enlist(registry, classes, "LocalResponse")
    (contract,), (needs, answers) = recipe.files(3), recipe.tables(3)
    recipe.enlist(contract, needs, '"local-response": {"epsilon": 1.0}')
    recipe.enlist(contract, answers, '"local-response"')
    output = recipe.play(5)
    assert "test_the_estimate_is_unbiased_with_the_stated_deviation[local-response-exact-shuffler]" in output
    assert "test_every_mechanism_in_the_folder_is_in_the_list" in output


RUN = """
run = "recipe"
horizon = 4000
mechanism = {name = "distributed-polya", epsilon = 1.0}
environment = {name = "beta", seed = 4, a = [1.0, 5.0], b = [5.0, 1.0]}
unsafe = {noise_seed = 3}
"""


def follow_environment(copy: Path) -> None:
    recipe = Recipe("Add an environment", "beta", copy)
    recipe.write(1, "beta.py")
    (listed,), (specs,) = recipe.files(2), recipe.tables(2)
    recipe.import_(listed, "from distrust.client.environments.beta import BetaSpec")
    recipe.enlist(listed, specs, "BetaSpec")
    (laws,), (worlds,) = recipe.files(3), recipe.tables(3)
    world = '{"name": "beta", "a": [0.5, 2.0, 7.0], "b": [0.5, 5.0, 1.0]}'
    recipe.enlist(laws, worlds, f'"beta": build_environment(read_spec({world}))')
    recipe.import_(laws, "from distrust.client.environments.beta import Beta")
    recipe.replace(laws, "from scipy.stats import norm\n", "from scipy.stats import beta, norm\n")
    case = "    if isinstance(world, Beta):\n        return np.asarray(beta.cdf(points, world.a[arm], world.b[arm]))\n"
    recipe.insert(laws, "    if isinstance(world, Bernoulli)", case)
    assert "test_rewards_follow_the_law_of_their_arm[beta-2]" in recipe.play(4)
    (copy / "beta.toml").write_text(RUN, "utf-8")
    ((program, *words),) = recipe.commands(5)
    result = json.loads(recipe.run(f"{program}.lab", *words, "--json", "-", "--port-base", "0"))
    assert (result["environment"], result["chosen"], sum(result["pulls"])) == ("beta", 1, 4000)


SERVED = """
run = "recipe"
horizon = 200
mechanism = {name = "local-laplace", via = "shuffler", epsilon = 3.0}
environment = {name = "bernoulli", seed = 4, means = [0.9, 0.1]}
"""


def follow_channel(copy: Path) -> None:
    recipe = Recipe("Add a channel", "sorted", copy)
    recipe.write(1, "sorted.py")
    (registry,), (classes,) = recipe.files(2), recipe.tables(2)
    recipe.import_(registry, "from distrust.common.protocol.channels.sorted import SortedRecords")
    recipe.enlist(registry, classes, "SortedRecords")
    (contract,), (terms, _) = recipe.files(3), recipe.tables(3)
    recipe.enlist(contract, terms, '"sorted": {"dimension": 1}')
    output = recipe.play(4)
    assert "test_mixing_tells_nothing_of_the_order_in_which_reports_came[sorted]" in output
    assert "test_every_channel_in_the_folder_is_in_the_list_and_is_tested_here" in output
    (copy / "sorted.toml").write_text(SERVED, "utf-8")
    ((program, *words),) = recipe.commands(5)
    result = json.loads(recipe.run(f"{program}.lab", *words, "--json", "-", "--port-base", "0"))
    assert sum(result["pulls"]) == 200


MESSAGE = '''

class Pulls(Message):
    """Progress of a run: `pulls` of its `horizon`. A small answer for a progress bar."""

    run: Identifier
    pulls: Annotated[int, Field(ge=0)]
    horizon: Annotated[int, Field(ge=1)]
'''

METHOD = '''    def pulls(self, run: str) -> Pulls:
        """Return the progress of a run. Raises WrongCohort."""
        snapshot = self._service.active_run(run).snapshot()
        return Pulls(run=run, pulls=snapshot.pulls, horizon=snapshot.horizon)

'''

ROUTE = '''@run_routes.get("/runs/{run}/pulls", responses=problems(WrongCohort))
def pulls(run: str, reader: ReaderDep) -> Pulls:
    """Return the number of a run's pulls that are spent."""
    return reader.pulls(run)


'''

TEST = """

def test_pulls_are_told_and_an_unknown_run_is_refused(tmp_path: Path) -> None:
    async def body(client: httpx.AsyncClient, intermediaries: InMemoryIntermediaries) -> None:
        await create(client, horizon=400)
        assert (await client.get("/runs/demo/pulls")).json() == {"run": "demo", "pulls": 96, "horizon": 400}
        await play(client, InMemoryClients(intermediaries, REWARDS))
        assert (await client.get("/runs/demo/pulls")).json()["pulls"] == 400
        assert await problem(await client.get("/runs/x/pulls")) == (404, "wrong-cohort")
        document = (await client.get("http://server/openapi.json")).json()
        answers = document["paths"]["/v1/runs/{run}/pulls"]["get"]["responses"]
        assert {"200", "404"} <= set(answers)

    over_http(tmp_path, body)
"""


def follow_endpoint(copy: Path) -> None:
    recipe = Recipe("Add an endpoint", "pulls", copy)
    messages, (reader, *_), (routes,), (tests,) = (recipe.files(step) for step in range(1, 5))
    recipe.insert(messages[0], "", MESSAGE)
    recipe.replace(reader, "    LedgerView,\n", "    LedgerView,\n    Pulls,\n")
    recipe.replace(routes, " LedgerView,", " LedgerView, Pulls,")
    recipe.insert(reader, "    def ledger(", METHOD)
    recipe.insert(routes, '@run_routes.get("/runs/{run}/config"', ROUTE)
    recipe.insert(tests, "", TEST)
    assert "test_pulls_are_told_and_an_unknown_run_is_refused" in recipe.play(5)


RECIPES = {
    follow.__name__: follow
    for follow in (follow_policy, follow_mechanism, follow_environment, follow_channel, follow_endpoint)
}
FEW = 1  # recipes that are followed here; CI follows all


@pytest.mark.slow
@pytest.mark.parametrize("recipe", picked(list(RECIPES), FEW, "recipes"))
def test_a_recipe_works(recipe: str, copy: Path) -> None:
    RECIPES[recipe](copy)
