"""Defines a cell of an experiment, and the row that it ends as."""

from typing import Annotated, Any, NamedTuple

from pydantic import Field

from distrust.common.wire import Message


class Cell(NamedTuple):
    """One run of an experiment: the labels of its panel and series, and its repetition from 0."""

    panel: str
    series: str
    repetition: int


class Row(Message):
    """The result of one cell.

    digest           of the cell's run file and checkpoints (`lab.sweep.cells.cell_digest`).
    repetition       from 0.
    seed             the environment's, the same for every panel and series of a repetition.
    epsilon          as the run file asks for it; null without one.
    clients          of all cohorts: fewer than the horizon where the last batch was not finished.
    regret           after all pulls of the horizon.
    chosen, best     arms; null in contextual runs.
    best_dropped     whether no arm of the largest true mean was left.
    best_dropped_at  after so many pulls.
    widths           confidence intervals that the policy formed, or ellipsoids of a contextual policy's decisions.
    width_failures   those that miss the true mean, or θ*.
    failure          probability, by the policy's own theorem, that any of them does; null when it states none.
    indefinite       batches after which noise left the matrix of a contextual policy indefinite; absent for a policy
                     without a matrix, and from rows that are older than this column.
    payload_bits     of one client's report, a mean over the clients.
    modulus_bits     ⌈log₂ m⌉ a coordinate, a mean over the clients.
    bits             all the payload bits of the run.
    seconds          wall time; the only field that is not a function of the experiment.
    curve            regret at the checkpoints, linear between the ends of rounds.
    """

    experiment: str
    panel: str
    series: str
    digest: str
    repetition: Annotated[int, Field(ge=0)]
    seed: int
    policy: str
    mechanism: str
    calibration: str
    epsilon: float | None
    horizon: int
    clients: int
    regret: float
    chosen: int | None
    best: int | None
    best_dropped: bool
    best_dropped_at: int | None
    widths: int
    width_failures: int
    failure: float | None
    aborted: int
    unfinished: int
    payload_bits: float
    modulus_bits: float
    bits: float
    seconds: float
    curve: list[float]
    indefinite: int | None = Field(default=None, exclude_if=lambda indefinite: indefinite is None)

    @property
    def cell(self) -> Cell:
        """Return the cell that ended as this row."""
        return Cell(self.panel, self.series, self.repetition)

    def lasting(self) -> dict[str, Any]:
        """Return the columns that are a function of the experiment and the code: all but the seconds."""
        return self.model_dump(exclude={"seconds"})
