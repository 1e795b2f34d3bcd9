"""The server's report of one round of a small run: a released, an open and a planned cohort."""

from distrust.common.protocol.messages.status import CohortView
from distrust.common.protocol.run.listing import RunView
from distrust.common.protocol.run.progress import RoundReport
from distrust.lab.play.run_file import parse
from distrust.server.learner.learner import Learner
from distrust.server.learner.rounds import round_guarantee

FILE = parse(
    """
run = "trial"
horizon = 3000
policy.first_batch = 6
mechanism = {name = "distributed-polya", epsilon = 1.0}
environment = {name = "bernoulli", seed = 11, means = [0.2, 0.5, 0.9]}
"""
)
LEARNER = Learner(FILE.config)
RECORD = LEARNER.rounds[0]
STATES = [
    {"granted": 64, "state": "released", "survivors": 60, "lost": 4},
    {"granted": 64, "state": "open"},
    {"granted": 0, "state": "planned"},
]
REPORT = RoundReport(
    run="trial",
    config=FILE.config.digest(),
    run_id=bytes(16),
    number=1,
    batch=6,
    state="open",
    arms=[0, 1, 2],
    eliminated=[],
    minimum=RECORD.minimum,
    mechanism=RECORD.mechanism,
    guarantee=round_guarantee(FILE.config, RECORD),
    cohorts=[
        CohortView.model_validate({"cohort": c.cohort, "arm": c.arm, "attempt": 1, "clients": c.clients, **state})
        for c, state in zip(RECORD.cohorts, STATES, strict=True)
    ],
)

VIEW = RunView(
    run="trial",
    state="running",
    config=FILE.config,
    digest=FILE.config.digest(),
    run_id=bytes(16),
    snapshot=LEARNER.snapshot(),
    clients=128,
    cohorts_open=2,
    cohorts_released=1,
    cohorts_aborted=0,
)
