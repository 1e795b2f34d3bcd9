"""Tests that the short record of a million one-client rounds is the sum of the ordinary one."""

import json
from dataclasses import replace
from typing import Any

import pytest

from distrust.common.dp.mechanisms import privacy_of
from distrust.lab.play import in_process
from distrust.lab.play.failures import tracker_of
from distrust.lab.play.result import Result, facts
from distrust.lab.play.run_file import RunFile, parse
from distrust.lab.play.sequential import SequentialLearner
from distrust.server.learner.learner import Learner
from distrust.server.learner.rounds import CohortPlan, LostCohort, ReleasedCohort, RoundPlan, spent_by_all

pytestmark = pytest.mark.slow

UNTIMED = {"seconds", "clients_per_second"}
FINER = {*UNTIMED, "rounds", "regret", "bits"}
"""Fields that differ between rounds and blocks."""


def run_file(horizon: int = 400, dropout: float = 0.2, more: str = "") -> RunFile:
    return parse(
        f"""
run = "alone"
horizon = {horizon}
[policy]
name = "ucb1"
[mechanism]
name = "identity"
[unsafe]
noise_seed = 5
[environment]
name = "gaussian-easy"
arms = 4
seed = 3
[fleet]
dropout = {dropout}
{more}
"""
    )


def played(file: RunFile, learner: Learner, monkeypatch: pytest.MonkeyPatch) -> Result:
    """Return the result of the driver when it plays with this learner."""
    monkeypatch.setattr(in_process, "SequentialLearner", lambda _config: learner)
    return in_process.run(file)


def test_a_short_run_is_the_ordinary_learners_in_every_field(monkeypatch: pytest.MonkeyPatch) -> None:
    file = run_file()
    light, ordinary = in_process.run(file), played(file, Learner(file.config), monkeypatch)
    assert len(light.rounds) == len(ordinary.rounds) == 400
    assert light.model_dump(exclude=UNTIMED) == ordinary.model_dump(exclude=UNTIMED)


@pytest.mark.parametrize("block", [2, 7, 400, 1000])
@pytest.mark.few(2)
def test_blocks_add_up_to_the_ordinary_run(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    file = run_file()
    ordinary = played(file, Learner(file.config), monkeypatch)
    joined = played(file, SequentialLearner(file.config, block), monkeypatch)
    assert len(joined.rounds) == -(-400 // block)
    assert joined.model_dump(exclude=FINER) == ordinary.model_dump(exclude=FINER)
    assert joined.bits.payload == pytest.approx(ordinary.bits.payload)
    assert joined.regret.final == ordinary.regret.final
    ends = dict(ordinary.regret.curve)
    for pulls, regret in joined.regret.curve:
        assert regret == pytest.approx(ends[pulls], abs=1e-9)
    assert total(joined) == pytest.approx(total(ordinary))


def total(result: Result) -> list[float]:
    """Return clients, survivors and rewards of each arm."""
    sums = [0.0] * 12
    for cohort in (cohort for record in result.rounds for cohort in record.cohorts):
        assert cohort.arm is not None
        found = (cohort.clients, cohort.survivors or 0, *(cohort.estimate or [0.0]))
        for place, value in enumerate(found):
            sums[3 * cohort.arm + place] += value
    return sums


def test_cohorts_that_are_lost_are_replaced_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third cohort is lost; in blocks as one by one."""
    calls = iter(range(10**6))

    def outcome(plan: RoundPlan, cohort: CohortPlan) -> ReleasedCohort | LostCohort:
        del plan
        if next(calls) % 3 == 2:
            return LostCohort(cohort=cohort.cohort, reason="gone")
        return ReleasedCohort(cohort=cohort.cohort, sum=[0.5], survivors=1)

    monkeypatch.setattr(in_process, "CohortsInProcess", lambda _file, _world: outcome)
    file = run_file(dropout=0.0)
    joined = played(file, SequentialLearner(file.config, 7), monkeypatch)
    calls = iter(range(10**6))
    ordinary = played(file, Learner(file.config), monkeypatch)
    assert joined.model_dump(exclude=FINER) == ordinary.model_dump(exclude=FINER)
    assert joined.aborted == 133
    assert sum(joined.pulls) == 400
    assert total(joined) == pytest.approx(total(ordinary))


def test_a_long_run_keeps_a_thousand_records_at_most() -> None:
    seen = []
    file = run_file(horizon=5_003, dropout=0.0)
    learner = in_process.play_learner(file, lambda one: seen.append(len(one.rounds)))
    assert len(learner.rounds) <= 1000
    assert sum(record.clients for record in learner.rounds) == sum(learner.pulls) == 5_003
    assert max(seen) <= 1006
    assert learner.snapshot().round == 5_003


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"policy": {"name": "ucb1"}, "environment": {"name": "gaussian-easy", "arms": 4}}, id="arms"),
        pytest.param({"policy": {"name": "linucb"}, "environment": {"name": "contextual-synthetic"}}, id="contexts"),
    ],
)
def test_joined_records_say_for_which_rounds_they_stand_and_the_table_counts_rounds(more: dict[str, Any]) -> None:
    more["environment"]["seed"] = 3
    result = in_process.run({"run": "alone", "horizon": 1001, "mechanism": {"name": "identity"}, **more})
    assert dict(facts(result))["rounds"] == "1001, with 0 cohorts aborted and replaced"
    records = json.loads(result.model_dump_json())["rounds"]
    assert [record["number"] for record in records] == [*range(2, 1001, 2), 1001]
    assert [one.get("first", one["number"]) for one in records] == [*range(1, 1001, 2), 1001]
    assert "first" not in records[-1]
    lines = result.frame("rounds")
    assert (lines["round"].diff()[1:] == lines["clients"][1:]).all()
    assert (lines["pulls"] == lines["round"]).all()
    assert lines["regret"].iloc[-1] == result.regret.final


def test_every_pull_forms_an_interval_and_one_that_misses_is_seen_within_its_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A world that believes in other means than it plays: t makes a narrow interval wide again before a block ends."""
    file = run_file(dropout=0.0)
    believed = replace(file, environment=file.environment.model_copy(update={"seed": 4}))
    counts = []
    for learner in (Learner(file.config), SequentialLearner(file.config, 400)):
        monkeypatch.setattr(in_process, "SequentialLearner", lambda _config, learner=learner: learner)
        tracker = tracker_of(believed)
        events = tracker.truth(in_process.play_learner(file, tracker)).events
        counts.append((events.widths, events.width_failures))
    assert counts[0] == counts[1]
    assert counts[0][0] == 400
    assert counts[0][1] > counted_at_the_end(learner, believed)


def counted_at_the_end(learner: Learner, file: RunFile) -> int:
    means = file.world().means
    return sum(not interval.lower <= means[interval.arm] <= interval.upper for interval in learner.policy.intervals)


def test_a_joined_run_says_how_often_a_client_may_have_come() -> None:
    """Blocks have a cohort an arm, and a client may have been in a cohort of each of their rounds."""
    file = parse(
        """
run = "often"
horizon = 1200
[returning]
contributions = 1000
[policy]
name = "dp-ucb"
[mechanism]
name = "tree"
epsilon = 0.1
delta = 1e-6
batches = 1200
via = "shuffler"
[environment]
name = "bernoulli"
means = [0.1, 0.9]
seed = 1
"""
    )
    learner = in_process.play_learner(file)
    assert len(learner.rounds) < 1000
    charged = spent_by_all(file.config, learner.rounds)[-1]
    stream = privacy_of(learner.rounds[0].mechanism).stream
    assert stream is not None
    assert (charged.contributions, charged.guarantee.epsilon) == (1000, stream.joint(1000).promise.epsilon)
