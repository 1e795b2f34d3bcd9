"""Tests that rows of MSLR become contexts: the table, its loader, the clients, and the result's warnings."""

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from distrust.client.environments import build_environment, read_spec
from distrust.client.environments.contextual import ContextualWorld, experience
from distrust.client.environments.contextual_mslr import ContextTable, ContextualMslr, read_contexts, write_contexts
from distrust.client.environments.letor import build_contexts
from distrust.common.bandit.contextual_choice import ChoiceRule
from distrust.common.errors import BadParameter
from distrust.common.randomness import UnsafeSeededStream
from distrust.lab.__main__ import app
from distrust.lab.play.in_process import run
from distrust.lab.play.progress import print_result
from distrust.lab.play.result import Result
from distrust.lab.play.run_file import parse


def _world(**table: object) -> ContextualMslr:
    world = build_environment(read_spec({"name": "contextual-mslr", **table}))
    assert isinstance(world, ContextualWorld)
    assert isinstance(world, ContextualMslr)
    return world


def _letor(path: Path, count: int, seed: int) -> Path:
    """Write rows of four features, and return their path.

    The first three have sizes 1, 100 and 10,000; the third is almost a function of the second. The fourth never varies.
    The label is large where the first feature is.
    """
    rng = np.random.default_rng(seed)
    lines = []
    for index in range(count):
        first, second, noise = rng.uniform(0, 1), rng.uniform(1, 100), rng.uniform(0, 0.01)
        lines.append(f"{int(first * 5)} qid:{index} 1:{first:.6f} 2:{second:.6f} 3:{second**2 + noise:.6f} 4:7")
    path.write_text("\n".join(lines) + "\n", encoding="ascii")
    return path


def test_the_shipped_table_holds_the_rows_of_the_test_sample() -> None:
    """Label counts of the 5,000 lines of msn1.fold1.test.5k.txt, by `cut -c1 | sort | uniq -c`."""
    world = _world(dimension=11)
    assert np.bincount((4 * world.relevance).astype(int)).tolist() == [2847, 1442, 579, 98, 34]
    assert world.rows.shape == (5000, 11)
    assert world.clipped == 281
    lengths = np.sqrt((world.rows**2).sum(axis=1))
    assert lengths.max() < 1 + 1e-12
    assert (lengths > 1 - 1e-12).sum() == world.clipped
    assert (world.rows[:, -1] == 1 / np.sqrt(2)).all()


def test_fewer_components_are_the_first_ones_with_a_radius_of_their_own() -> None:
    for dimension in range(2, 12):
        world = _world(dimension=dimension)
        assert world.dimension == dimension
        # 5 % of the held-back rows were longer. The first two components are longer in other queries.
        assert 0.03 < world.clipped / 5000 < (0.13 if dimension < 4 else 0.07)
    wide = _world(dimension=4, radius=100)
    table = read_contexts(Path("client/environments/data/mslr-contexts.csv"))
    assert wide.clipped == 0
    assert np.allclose(wide.rows[:, :3] * np.sqrt(2) * 100, table.components[:, :3])


def test_clients_meet_rows_drawn_uniformly_and_are_paid_their_relevance() -> None:
    world = _world(arms=20)
    met = world.contexts(20_000, UnsafeSeededStream(1, "mslr"))
    assert met.features.shape == (20_000, 20, 10)
    means = world.means(met.features)
    assert means.shape == (20_000, 20)
    # Hoeffding over 400,000 independent rows; false alarm rate 1e-9 in each comparison.
    slack = np.sqrt(np.log(2 / 1e-9) / (2 * 400_000))
    assert abs(means.mean() - world.relevance.mean()) < slack
    for label in range(5):
        assert abs((means == label / 4).mean() - (world.relevance == label / 4).mean()) < slack + 2e-3  # ties average
    rule = ChoiceRule(np.ones((1, 10)))
    seen, regrets = experience(world, rule, 300, UnsafeSeededStream(2, "mslr"))
    rows = {row.tobytes(): paid for row, paid in zip(world.rows, world.relevance, strict=True)}
    drawn = world.contexts(300, UnsafeSeededStream(2, "mslr")).features
    for client in range(300):
        assert (seen.features[client] == drawn[client, seen.arms[client]]).all()
        offered = [rows[context.tobytes()] for context in drawn[client]]
        if len({context.tobytes() for context in drawn[client]} & _ambiguous(world)):
            continue
        assert seen.rewards[client] == offered[seen.arms[client]]
        assert regrets[client] == max(offered) - offered[seen.arms[client]]


def _ambiguous(world: ContextualMslr) -> set[bytes]:
    """Return the contexts of several rows that differ in relevance."""
    paid: dict[bytes, set[float]] = {}
    for row, relevance in zip(world.rows, world.relevance.tolist(), strict=True):
        paid.setdefault(row.tobytes(), set()).add(relevance)
    return {context for context, several in paid.items() if len(several) > 1}


def test_rows_with_equal_contexts_pay_their_average_and_unknown_ones_are_refused() -> None:
    rows = np.array([[0.1, 0.7], [0.2, 0.7], [0.1, 0.7]])
    world = ContextualMslr(2, rows, np.array([1.0, 0.25, 0.5]), 0)
    assert world.means(rows[np.newaxis]).tolist() == [[0.75, 0.25, 0.75]]
    for unknown in ([0.3, 0.7], [9.0, 9.0], [-1.0, 0.0]):
        with pytest.raises(BadParameter, match="rows of the table only"):
            world.means(np.array([[unknown]]))


def test_no_linear_rule_is_near_the_best_row() -> None:
    """The figures of the module's docstring. Least squares over all rows is the best that a linear policy can learn."""
    world = _world()
    theta = np.linalg.lstsq(world.rows, world.relevance, rcond=None)[0]
    seen, regrets = experience(world, ChoiceRule(theta[np.newaxis]), 50_000, UnsafeSeededStream(3, "floor"))
    assert seen.rewards.mean() == pytest.approx(0.26, abs=0.01)
    assert (seen.rewards + regrets).mean() == pytest.approx(0.52, abs=0.01)
    assert world.relevance.mean() == pytest.approx(0.1515)
    assert np.linalg.norm(theta) < 1  # as policies assume


def test_a_table_is_reduced_by_the_components_of_the_held_back_rows(tmp_path: Path) -> None:
    paths = [_letor(tmp_path / "a.txt", 40, 1), _letor(tmp_path / "b.txt", 30, 2)]
    fit = [_letor(tmp_path / "fit.txt", 200, 3)]
    held = build_contexts(fit, fit, 2)
    # Uncorrelated components of deviation 1 around 0, and radii that 95 % of these rows do not exceed.
    assert np.allclose(held.components.mean(axis=0), 0)
    assert np.allclose(held.components.T @ held.components / 200, np.eye(2))
    assert ((held.components**2).sum(axis=1) <= held.radii[1] ** 2).mean() == pytest.approx(0.95, abs=0.006)
    # The second and third feature are one component; the first feature is the other, and makes the label.
    first = np.array([float(line.split()[2][2:]) for line in fit[0].read_text().splitlines()])
    assert abs(np.corrcoef(first, held.components[:, 1])[0, 1]) > 0.95
    table = build_contexts(paths, fit, 2)
    assert table.labels.tolist() == [int(path_line[0]) for path in paths for path_line in path.read_text().splitlines()]
    assert (table.radii == held.radii).all()
    assert (build_contexts(paths[:1], fit, 2).components == table.components[:40]).all()
    for components in (0, 4, 136):
        with pytest.raises(BadParameter, match=r"components = .*from 1 to 3"):
            build_contexts(paths, fit, components)


def test_the_command_makes_a_table(tmp_path: Path) -> None:
    rows, fit, out = _letor(tmp_path / "a.txt", 40, 1), _letor(tmp_path / "fit.txt", 200, 3), tmp_path / "out.csv"
    words = ["data", "mslr-contexts", "--components", "3", "--fit", str(fit), "--out", str(out), str(rows)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0
    assert "40 rows, 3 components" in " ".join(done.output.split())
    read, built = read_contexts(out), build_contexts([rows], [fit], 3)
    assert (read.labels == built.labels).all()
    assert np.abs(read.components - built.components).max() <= 0.0005
    assert np.abs(read.radii - built.radii).max() <= 0.0005
    assert _world(file=str(out), dimension=4).rows.shape == (40, 4)


def test_a_table_of_the_users_is_read_back_and_played(tmp_path: Path) -> None:
    path = tmp_path / "contexts.csv"
    table = ContextTable(np.array([0, 4, 2]), np.array([[0.5, -1.0], [3.0, 4.0], [-0.0004, 0.0]]), np.array([1.0, 2.5]))
    write_contexts(table, path)
    assert path.read_text().splitlines()[-1] == "2,0.000,0.000"
    read = read_contexts(path)
    assert (read.labels == table.labels).all()
    assert np.abs(read.components - table.components).max() <= 0.0005
    world = _world(file=str(path), dimension=3, arms=2)
    assert world.clipped == 1
    assert np.allclose(world.rows * np.sqrt(2), [[0.2, -0.4, 1], [0.6, 0.8, 1], [0, 0, 1]])
    assert world.relevance.tolist() == [0, 1, 0.5]
    write_contexts(ContextTable(table.labels[:2], table.components[:2], table.radii), path)
    assert len(_world(file=str(path), dimension=3).rows) == 2  # a file that changes is read again


def test_long_contexts_are_refused_by_their_line(tmp_path: Path) -> None:
    path = tmp_path / "contexts.csv"
    path.write_text("label,x1\nradius,1\n0,0.5\n1,-1.0\n2,1.001\n", encoding="utf-8")
    table = {"name": "contextual-mslr", "file": str(path), "dimension": 2, "long_contexts": "refuse"}
    with pytest.raises(BadParameter, match=r"line 5 of the data has a context of length 1\.001, and 1 lines"):
        build_environment(read_spec(table))
    world = build_environment(read_spec({**table, "radius": 1.01}))
    assert isinstance(world, ContextualMslr)
    assert world.clipped == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("", "line 1 must be", id="empty"),
        pytest.param("label\nradius\n1\n", "line 1 must be", id="no-components"),
        pytest.param("label,x1,x3\nradius,1,1\n1,2,3\n", "line 1 must be", id="a-column-is-missing"),
        pytest.param("label,x1\n", "line 2 must be radius and 1 numbers", id="no-radii"),
        pytest.param("label,x1\n1,0.5\n", "line 2 must be radius", id="no-line-of-radii"),
        pytest.param("label,x1\nradius,0\n1,0.5\n", "line 2 must be radius", id="radius-0"),
        pytest.param("label,x1\nradius,nan\n1,0.5\n", "line 2 must be radius", id="radius-nan"),
        pytest.param("label,x1,x2\nradius,1\n1,0.5\n", "line 2 must be radius", id="too-few-radii"),
        pytest.param("label,x1\nradius,1\n", "no rows", id="no-rows"),
        pytest.param("label,x1\nradius,1\n1,0.5\n5,0.5\n", "line 4 must be a label", id="label-5"),
        pytest.param("label,x1\nradius,1\n1.5,0.5\n", "line 3 must be a label", id="half-a-label"),
        pytest.param("label,x1\nradius,1\n1,nan\n", "line 3 must be", id="nan"),
        pytest.param("label,x1\nradius,1\n1,-inf\n", "line 3 must be", id="infinite"),
        pytest.param("label,x1\nradius,1\n1,1e300\n", "line 3 must be", id="huge"),
        pytest.param("label,x1\nradius,1\n1,0.5,0.5\n", "line 3 must be", id="long-row"),
        pytest.param("label,x1\nradius,1\n1,\n", "line 3 must be", id="empty-cell"),
        pytest.param("label,x1\nradius,1\n1,0.5\n\n1,0.5\n", "line 4 must be", id="empty-line"),
    ],
)
def test_broken_tables_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "contexts.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadParameter, match=words) as caught:
        read_contexts(path, "environment.file")
    assert caught.value.field == "environment.file"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        pytest.param({"dimension": 12}, "10 components, so at most 11", id="more-than-the-components"),
        pytest.param({"dimension": 1}, "dimension", id="only-the-constant"),
        pytest.param({"arms": 1}, "arms", id="one-arm"),
        pytest.param({"file": "/nowhere.csv"}, "distrust data mslr-contexts", id="missing-file"),
        pytest.param({"long_contexts": "drop"}, "long_contexts", id="unknown-word"),
        pytest.param({"long_contexts": "refuse"}, "line 25 of the data", id="the-shipped-table-has-long-ones"),
        pytest.param({"radius": 0.0}, "radius", id="radius-0"),
    ],
)
def test_bad_environments_are_refused_in_one_line(table: dict[str, object], words: str) -> None:
    with pytest.raises(BadParameter, match=words) as caught:
        _world(**table)
    assert "\n" not in str(caught.value)


def _played(environment: str) -> Result:
    return run(
        parse(
            f"""
            run = "rows"
            horizon = 60
            environment = {{ name = {environment}, seed = 1 }}
            policy = {{ name = "linucb", batch = 20 }}
            mechanism = {{ name = "identity" }}
            """
        )
    )


def test_a_run_counts_the_shortened_contexts_in_its_result_and_table() -> None:
    result = _played('"contextual-mslr"')
    assert result.clipped == 295
    assert Result.model_validate_json(result.model_dump_json()) == result
    written = io.StringIO()
    print_result(result, Console(file=written, width=200))
    assert "clipped     295 contexts of the data, to length 1" in written.getvalue()


def test_a_run_without_shortened_contexts_does_not_name_them() -> None:
    for environment in (
        '"contextual-synthetic", arms = 5',
        '"contextual-mslr", radius = 100.0, long_contexts = "refuse"',
    ):
        result = _played(environment)
        written = io.StringIO()
        print_result(result, Console(file=written, width=200))
        assert "clipped" not in result.model_dump()
        assert "clipped" not in written.getvalue()
