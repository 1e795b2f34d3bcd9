"""Tests that a run can be played again from the rounds that a server publishes, and that its failures are found."""

from collections.abc import Callable
from typing import Any

import pytest

from distrust.common.dp.accounting.guarantee import ShownGuarantee
from distrust.common.protocol.messages.status import CohortView
from distrust.common.protocol.run.progress import RoundReport, Snapshot
from distrust.lab.play import in_process
from distrust.lab.play.run_file import RunFile, parse
from distrust.lab.services.replay import ReplayDiffers, replay_failures
from distrust.server.learner.learner import Learner
from distrust.server.learner.rounds import RoundRecord

LINEAR = 'name = "linear-sphere"\narms = 6'
FILES = {
    "arms": ("first_batch = 4", 'name = "distributed-polya"\nepsilon = 2.0', "", 900),
    "pooled": ('name = "vb-sdp-ae"', 'name = "central-laplace"\nepsilon = 1.0', "", 900),
    "pull-by-pull": ('name = "ucb1"', 'name = "identity"', "", 300),
    "arm-by-arm": ('name = "adap-ucb"', 'name = "central-laplace"\nepsilon = 1.0', "", 900),
    "streams-of-arms": (
        'name = "dp-ucb"\nbatch = 20',
        'name = "tree"\nepsilon = 5.0\ndelta = 1e-2\nbatches = 64',
        "",
        900,
    ),
    "vectors": (
        'name = "dp-dpe"',
        'name = "distributed-skellam"\nepsilon = 10.0\ndelta = 1e-3',
        'name = "linear-distributed"\narms = 12\ndimension = 3',
        1500,
    ),
    "cohorts-of-all-sizes": ('name = "dp-pe"', 'name = "distributed-skellam"\nepsilon = 5.0', LINEAR, 1200),
    "dealt": (
        'name = "almost-free"\nmodel = "shuffled"',
        'name = "shuffled-laplace"\nepsilon = 1.0\ndelta = 1e-3',
        LINEAR,
        1500,
    ),
}

KEEPING = {"pull-by-pull", "arm-by-arm", "streams-of-arms"}
"""Rows whose policies drop no arm."""


def run_file(which: str) -> RunFile:
    """Return a run whose clients leave, so that cohorts are lost and replaced."""
    policy, mechanism, world, horizon = FILES[which]
    return parse(
        f"""
run = "trial"
horizon = {horizon}
[policy]
{policy}
[mechanism]
{mechanism}
[unsafe]
noise_seed = 7
[environment]
seed = 7
{world or 'name = "bernoulli"' + chr(10) + "means = [0.05, 0.95, 0.5]"}
[fleet]
dropout = 0.1
"""
    )


def published(learner: Learner) -> list[RoundReport]:
    """Return every round, as it travels."""
    return [RoundReport.model_validate_json(_report(learner, record).model_dump_json()) for record in learner.rounds]


def _report(learner: Learner, record: RoundRecord) -> RoundReport:
    return RoundReport(
        run=learner.config.run,
        config=learner.config.digest(),
        run_id=bytes(16),
        number=record.number,
        batch=record.ask.batch,
        decision=record.ask.decision,
        state="closed",
        arms=list(record.ask.arms),
        eliminated=list(record.eliminated),
        minimum=record.minimum,
        mechanism=record.mechanism,
        guarantee=ShownGuarantee.of(record.cost.guarantee, record.cost_alone.guarantee),
        cohorts=_cohorts(record),
    )


def _cohorts(record: RoundRecord) -> list[CohortView]:
    ended = {one.cohort: one for one in record.released.values()}
    views = []
    for cohort in record.cohorts:
        result = ended.get(cohort.cohort)
        how: dict[str, Any] = {"state": "aborted", "reason": "too few"}
        if result is not None:
            how = {"state": "released", "survivors": result.survivors, "estimate": result.sum, "counts": result.counts}
        place = {"arm": cohort.arm, "attempt": cohort.attempt, "clients": cohort.clients, "granted": cohort.clients}
        views.append(CohortView.model_validate({"cohort": cohort.cohort, **place, **how}))
    return views


def ordinary(file: RunFile) -> Learner:
    """Return a finished learner of the kind that servers have, with a record for every round."""
    learner = Learner(file.config)
    learner.run_cohorts(in_process.CohortsInProcess(file, file.world()))
    return learner


@pytest.mark.parametrize("which", FILES)
def test_a_run_played_again_from_its_rounds_has_the_failures_that_were_seen_when_it_was_played(which: str) -> None:
    file = run_file(which)
    learner = ordinary(file)
    assert replay_failures(file, published(learner), learner.snapshot()).events == in_process.run(file).events
    assert which in KEEPING or any(record.eliminated for record in learner.rounds)


def test_lost_cohorts_are_lost_again() -> None:
    """Half of the clients leave, and every cohort with them."""
    file = run_file("arms")
    gone = RunFile(file.config, file.environment, file.fleet.model_copy(update={"dropout": 0.16}))
    learner = ordinary(gone)
    assert learner.aborted > 0
    assert replay_failures(gone, published(learner), learner.snapshot()).events == in_process.run(gone).events


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda _: {"counts": None}, "survivors by action", id="counts-are-missing"),
        pytest.param(
            lambda cohort: {"estimate": [value + 1e-3 for value in cohort.estimate]},
            "mean is .* at the server",
            id="another-sum",
        ),
        pytest.param(lambda _: {"state": "open", "estimate": None}, "is open, without a sum", id="an-open-cohort"),
        pytest.param(lambda _: {"survivors": 0}, "cannot be: survivors = 0", id="no-survivors"),
        pytest.param(lambda _: {"cohort": "another"}, "the server had no cohort trial", id="another-cohort"),
    ],
)
def test_rounds_that_do_not_add_up_to_the_servers_word_give_no_events(
    change: Callable[[Any], dict[str, Any]], message: str
) -> None:
    file = run_file("dealt")
    learner = ordinary(file)
    reports = published(learner)
    last = next(report for report in reversed(reports) if report.cohorts[-1].state == "released")
    changed = [cohort.model_copy(update=change(cohort)) for cohort in last.cohorts]
    reports[reports.index(last)] = last.model_copy(update={"cohorts": changed})
    with pytest.raises(ReplayDiffers, match=message):
        replay_failures(file, reports, learner.snapshot())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"chosen": None}, "chosen is 1, and None at the server", id="another-arm"),
        pytest.param({"pulls": 899}, "pulls is 900, and 899 at the server", id="other-pulls"),
        pytest.param({"aborted": 7}, "aborted is 0, and 7 at the server", id="other-losses"),
    ],
)
def test_a_server_that_learned_something_else_is_told_so(changes: dict[str, Any], message: str) -> None:
    file = run_file("arms")
    learner = ordinary(file)
    snapshot = Snapshot.model_validate({**learner.snapshot().model_dump(), **changes})
    with pytest.raises(ReplayDiffers, match=message):
        replay_failures(file, published(learner), snapshot)


def test_an_arm_that_the_server_saw_elsewhere_is_named() -> None:
    file = run_file("arms")
    learner = ordinary(file)
    snapshot = learner.snapshot()
    arms = [arm.model_copy(update={"pulls": arm.pulls + 1}) if arm.arm == 2 else arm for arm in snapshot.arms]
    with pytest.raises(ReplayDiffers, match="arm 2: pulls is"):
        replay_failures(file, published(learner), snapshot.model_copy(update={"arms": arms}))
