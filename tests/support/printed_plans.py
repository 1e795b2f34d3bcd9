"""Prints the results on which processors have to agree: planned mechanisms, the demo's first rounds, cells of figures.

`python -m tests.support.printed_plans` writes one line of JSON each, with a label before a tab.
`tests/repo/test_same_on_every_machine.py` compares the lines of several processes.
"""

import itertools
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from distrust.common.dp.calculator.query import PrivacyQuery
from distrust.common.dp.mechanisms import MECHANISMS, Calibration, MechanismName
from distrust.common.errors import BadParameter
from distrust.lab.play import in_process
from distrust.lab.play.run_file import parse_table
from distrust.lab.sweep.cells import load_experiment, play_cell
from distrust.lab.sweep.row import Cell, Row

SCALARS = [
    *itertools.product((2, 10_000), (0.01, 20.0), (1e-6,)),
    (1000, 1e-4, 1e-6),
    (1000, 1.0, 1e-18),
    (10, 1.0, 1e-2),
]
"""n, ε and δ of cohorts of one coordinate."""

VECTORS = list(itertools.product((20,), (5.0,), (1e-6,), (4,), ("l1", "l2", "linf")))
"""n, ε, δ, D and norm."""

FEW: dict[MechanismName, list[tuple[int, float, float, int, str]]] = {
    "relaxed-secagg-shuffle": [(20, 5.0, 1e-6, 1, "linf"), (1000, 1.0, 1e-6, 1, "linf")],
    "shuffled-gaussian": [(2, 0.01, 1e-6, 1, "linf"), (10_000, 20.0, 1e-6, 1, "linf"), (20, 5.0, 1e-6, 4, "l2")],
}
"""The few cohorts of mechanisms whose search is long: n, ε, δ, D and norm."""

CELLS = [("free-2", 0, "Alg. 3 (shuffled), exact"), ("dlb-table-2", 0, "SDP-PE"), ("dlb-2a", 1, "DPE")]
"""Cells of experiments' quick forms: name, panel and series."""

CELL = "cell "
"""Begins the labels of cells whose floats may differ in their last bits."""

FIGURE = ("mab-2", 0, "Dist-DP-SE, exact")
"""A cell without linear algebra, whose row has the same bytes on every machine."""

DEMO = Path(__file__).parents[2] / "lab/runs/demo.toml"
HORIZON = 11_000
"""Pulls of the demo that are played."""


def questions(name: MechanismName) -> Iterator[PrivacyQuery]:
    """Yield the cohorts that a mechanism is planned for, with the options that it takes."""
    batches = 100 if MECHANISMS[name].takes_batches else None
    every = [*((*one, 1, "linf") for one in SCALARS), *VECTORS]
    for n, epsilon, delta, dimension, norm in FEW.get(name, every):
        yield PrivacyQuery(
            clients=n,
            epsilon=None if name == "identity" else epsilon,
            delta=delta if MECHANISMS[name].takes_delta else None,
            dimension=dimension,
            norm=norm,
            batches=batches,
        )


def planned(name: MechanismName) -> Iterator[tuple[str, object]]:
    """Yield every plan of a mechanism, or the refused field, labelled by its cohort."""
    for query, calibration in itertools.product(questions(name), get_args(Calibration)):
        n, epsilon, delta = query.clients, query.epsilon, query.delta
        label = f"{name} {calibration} n={n} ε={epsilon} δ={delta} D={query.dimension} {query.norm}"
        try:
            yield label, query.planned(name, calibration).model_dump(mode="json")
        except BadParameter as error:
            yield label, {"refused": error.field}


def rounds() -> Iterator[tuple[str, object]]:
    """Yield the result of the demo's first rounds in process, with noise from a seed."""
    table = tomllib.loads(DEMO.read_text("utf-8"))
    result = in_process.run(parse_table({**table, "horizon": HORIZON, "unsafe": {"noise_seed": 1}}))
    yield "demo", result.model_dump(mode="json", exclude={"seconds", "clients_per_second"})


def played(name: str, panel: int, series: str) -> Row:
    """Return the row of one cell of an experiment's quick form."""
    experiment = load_experiment(name, quick=True)
    row = play_cell(experiment, Cell(experiment.panels[panel].label, series, 0))
    assert isinstance(row, Row), row.reason
    return row


def cells() -> Iterator[tuple[str, object]]:
    """Yield the cells with linear algebra, and the one without."""
    for name, panel, series in CELLS:
        yield f"{CELL}{name}", played(name, panel, series).model_dump(mode="json")
    yield f"figure {FIGURE[0]}", played(*FIGURE).model_dump(mode="json", exclude={"seconds"})


def main() -> None:
    """Print all plans, rounds and cells, one a line."""
    parts = [*(planned(name) for name in MECHANISMS), rounds(), cells()]
    for label, value in itertools.chain.from_iterable(parts):
        sys.stdout.write(f"{label}\t{json.dumps(value, sort_keys=True)}\n")


if __name__ == "__main__":
    main()
