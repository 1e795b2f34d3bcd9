"""Tests that a design that breaks its promise ends the run with the reason, before anything is played."""

import numpy as np
import pytest
from numpy.typing import NDArray

from distrust.common.errors import BadParameter
from distrust.lab.play import in_process
from distrust.lab.play.run_file import RunFile, parse
from distrust.server.policies.linear import design


def run_file() -> RunFile:
    return parse(
        """
        run = "fault"
        horizon = 5000
        policy = {name = "dp-pe"}
        mechanism = {name = "identity"}
        environment = {name = "linear-sphere", arms = 40, dimension = 4, seed = 3}
        """
    )


def everything_alike(flat: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return equal weights for all actions. That is no design: too many actions have weight."""
    del weights
    return np.full(len(flat), 1 / len(flat))


def test_in_the_first_phase_the_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(design, "_frank_wolfe", everything_alike)
    with pytest.raises(BadParameter, match=r"on 40 actions.*: needs g ≤ 8 on at most 21"):
        run_file()


def test_in_a_later_phase_the_run_ends_with_its_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    file = run_file()
    honest = design._frank_wolfe

    def breaking(flat: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
        phases.append(len(flat))
        return honest(flat, weights) if len(phases) <= 4 else everything_alike(flat, weights)

    phases: list[int] = []
    monkeypatch.setattr(design, "_frank_wolfe", breaking)
    learner = in_process.play_learner(file)
    assert learner.finished
    assert learner.fault is not None
    assert "needs g ≤ 8 on at most 21" in learner.fault
    assert len(learner.rounds) >= 2
    assert sum(learner.pulls) < file.config.horizon
