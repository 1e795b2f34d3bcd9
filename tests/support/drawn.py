"""A small experiment to draw, its rows, and the axes of its figure."""

from matplotlib.axes import Axes

from distrust.lab.figures.draw import figure
from distrust.lab.sweep.cells import cell_digest
from distrust.lab.sweep.experiment import Experiment
from distrust.lab.sweep.row import Cell, Row

POINTS = 5
WORLD = {"name": "bernoulli", "means": [0.2, 0.8]}


def experiment(panels: tuple[float, ...] = (0.5, 2.0), **draw_: object) -> Experiment:
    return Experiment.model_validate(
        {
            "name": "pair",
            "title": "Two curves",
            "source": "no paper",
            "claim": "none",
            "note": "Smaller than life.",
            "repetitions": 3,
            "points": POINTS,
            "run": {"horizon": 1000, "environment": WORLD},
            "panels": [{"label": f"ε = {e}", "run": {"mechanism": {"name": "identity", "epsilon": e}}} for e in panels],
            "series": [{"label": "A"}, {"label": "A, exact"}],
            "draw": {"kind": "time-average", **draw_},
        }
    )


def row(panel: str, series: str, repetition: int, regret: float) -> Row:
    return Row(
        experiment="pair",
        panel=panel,
        series=series,
        digest="",
        repetition=repetition,
        seed=repetition,
        policy="p",
        mechanism="m",
        calibration="exact",
        epsilon=float(panel.rpartition(" ")[2]) if panel.startswith("ε = ") else None,
        horizon=1000,
        clients=1000,
        regret=regret,
        chosen=0,
        best=0,
        best_dropped=False,
        best_dropped_at=None,
        widths=1,
        width_failures=0,
        failure=0.1,
        aborted=0,
        unfinished=0,
        payload_bits=8.0,
        modulus_bits=8.0,
        bits=8000.0,
        seconds=1.0,
        curve=[regret * (at + 1) / POINTS for at in range(POINTS)],
    )


def rows(shown: Experiment) -> list[Row]:
    """Return regrets 100, 200, 300 for A, twice that for the other series, and ten times that in the second panel."""
    return [
        row(panel.label, series.label, r, 100.0 * (r + 1) * (1 + s) * 10**p).model_copy(
            update={"digest": cell_digest(shown, Cell(panel.label, series.label, r))}
        )
        for p, panel in enumerate(shown.panels)
        for s, series in enumerate(shown.series)
        for r in range(3)
    ]


def axes_of(shown: Experiment, table: list[Row]) -> list[Axes]:
    return list(figure(shown, table).subfigs[0].axes)
