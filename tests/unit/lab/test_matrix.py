"""Tests that every policy plays on every mechanism in one process, or is refused with a reason."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from distrust.common.dp.mechanisms import MECHANISMS, MechanismName
from distrust.common.errors import BadParameter
from distrust.common.specs import policy as specs
from distrust.lab.play import in_process
from distrust.lab.play.run_file import RunFile, parse
from tests.support.picked import picked

EXACT_ONLY = tuple(name for name, kind in MECHANISMS.items() if kind.calibrations == ("exact",))

SLOW = ("distributed-discrete-gaussian", "relaxed-secagg-shuffle", "shuffled-gaussian")  # to calibrate
ARMS = 'name = "bernoulli"\nmeans = [0.1, 0.9]'
SPHERE = 'name = "linear-sphere"\narms = 8'
CONTEXTS = 'name = "contextual-synthetic"\narms = 8\ndimension = 2'
MANY = 'name = "glm-sphere"\narms = 8\nparameters = "multi"'
SIDE_BY_SIDE = 'name = "linear-distributed"\narms = 8\ndimension = 2'


@dataclass(frozen=True)
class Row:
    """A policy's words in a run file, its world, and what `refusal` has to know of it."""

    words: str
    world: str = ARMS
    public: bool = False
    streams: bool = False
    by_action: bool = False
    calibration: str = "exact"
    epsilon: float = 5.0
    horizon: int = 1000

    @property
    def name(self) -> str:
        return self.words.split('"')[1]

    def refusal(self, mechanism: MechanismName) -> str | None:
        """Return why the pair is refused; None if it plays."""
        if self.public and mechanism != "identity":
            return "baseline without privacy"
        if self.streams and mechanism != "identity" and not MECHANISMS[mechanism].takes_batches:
            return "counts a stream an arm"
        if self.by_action and not MECHANISMS[mechanism].parts:
            return "shuffled actions need"
        if self.calibration == "paper" and mechanism in EXACT_ONLY:
            return "must be exact"
        return None

    def out_of_range(self, mechanism: MechanismName) -> str | None:
        """Return why the paper's theorem does not hold for so few clients at this ε; None if it holds."""
        if self.calibration == "exact" or self.name == "successive-elimination":
            return None
        if mechanism == "shuffled-gaussian":
            return r"mechanism\.(epsilon|calibration) = .*: .* for the constants of CTX Theorem B\.1"
        vectors = self.name == "dp-dpe" or self.world in {CONTEXTS, MANY}
        return "bits a client and coordinate" if vectors and mechanism == "shuffled-binomial" else None

    def file(self, mechanism: MechanismName, *, world: str | None = None, more: str = "") -> RunFile:
        """Return a seeded run of the policy on the mechanism."""
        words = [f'name = "{mechanism}"', f'calibration = "{self.calibration}"']
        words += [f"epsilon = {self.epsilon}"] if mechanism != "identity" else []
        words += ["delta = 1e-3"] if MECHANISMS[mechanism].takes_delta == "needed" else []
        words += ["batches = 64"] if MECHANISMS[mechanism].takes_batches else []
        return parse(
            f'run = "pair"\nhorizon = {self.horizon}\n[policy]\n{self.words}\n[mechanism]\n'
            + "\n".join(words)
            + f"\n[unsafe]\nnoise_seed = 5\n[environment]\nseed = 3\n{world or self.world}\n{more}"
        )


ELIMINATION = 'name = "successive-elimination"'
POLICIES = {
    "successive-elimination": Row(f"{ELIMINATION}\nfirst_batch = 6"),
    "successive-elimination-by-4": Row(f"{ELIMINATION}\nfirst_batch = 3\nbase = 4"),
    "published-code": Row(
        f'{ELIMINATION}\nfirst_batch = 4\nconstants = "published-code"', calibration="paper", epsilon=0.08
    ),
    "dp-se": Row('name = "dp-se"', horizon=1500),
    "vb-sdp-ae": Row('name = "vb-sdp-ae"\nfirst_batch = 6'),
    "ucb1": Row('name = "ucb1"', public=True),
    "adap-ucb": Row('name = "adap-ucb"\nfirst_batch = 6'),
    "dp-ucb": Row('name = "dp-ucb"\nbatch = 50', streams=True),
    "thompson": Row('name = "thompson"\nfirst_batch = 6'),
    "dp-dpe": Row('name = "dp-dpe"', SIDE_BY_SIDE),
    "dpe-fixed": Row('name = "dp-dpe"\nclients = 60', SIDE_BY_SIDE),
    "dp-pe": Row('name = "dp-pe"', SPHERE),
    "phased-elimination": Row('name = "phased-elimination"', SPHERE, public=True),
    "almost-free-central": Row('name = "almost-free"', SPHERE),
    "almost-free-local": Row('name = "almost-free"\nmodel = "local"', SPHERE),
    "almost-free-shuffled": Row('name = "almost-free"\nmodel = "shuffled"', SPHERE, by_action=True),
    "almost-free-no-core-set": Row('name = "almost-free"\ncore_set = false', SPHERE),
    "linucb": Row('name = "linucb"\nbatch = 50', CONTEXTS),
    "linucb-rarely": Row('name = "linucb"\nbatch = 50\nswitch = 0.5', CONTEXTS),
    "sblb": Row('name = "sblb"\nbatch = 50', CONTEXTS),
    "ldp-ols": Row('name = "ldp-ols"\nbatch = 50', CONTEXTS),
    "ldp-ols-multi": Row('name = "ldp-ols"\nbatch = 30\nwarm_up = 16', MANY),
    "ldp-sgd": Row('name = "ldp-sgd"\nbatch = 50', CONTEXTS),
    "ldp-sgd-multi": Row('name = "ldp-sgd"\nbatch = 30\nwarm_up = 16', MANY),
    "ldp-ucb": Row('name = "ldp-ucb"\nbatch = 50', CONTEXTS),
    "ldp-gloc": Row('name = "ldp-gloc"\nbatch = 50', CONTEXTS),
    "linear-thompson": Row('name = "linear-thompson"\nbatch = 50', CONTEXTS),
    "gloc-thompson": Row('name = "gloc-thompson"\nbatch = 50', CONTEXTS),
}
POLICIES |= {
    f"{policy}-paper": replace(row, calibration="paper", epsilon=0.5)  # the Gaussian theorem needs ε < 1
    for policy, row in POLICIES.items()
    if row.world != ARMS
}
PAIRS = [(policy, mechanism) for policy in POLICIES for mechanism in MECHANISMS]
SHARE = 9
"""Of the mechanisms that a policy may use, one in so many is played. CI plays all."""


def played(policy: str) -> list[MechanismName]:
    """Return the mechanisms that a policy is played on."""
    row = POLICIES[policy]
    allowed = [name for name in MECHANISMS if row.refusal(name) is None and row.out_of_range(name) is None]
    return picked(allowed, -(-len(allowed) // SHARE), f"mechanisms of {policy}")


ALLOWED = [
    pytest.param(policy, name, id=f"{policy}-on-{name}", marks=[pytest.mark.slow] if name in SLOW else [])
    for policy in POLICIES
    for name in played(policy)
]
REFUSED = [
    pytest.param(*pair, id="-on-".join(pair)) for pair in PAIRS if POLICIES[pair[0]].refusal(pair[1]) is not None
]
RANGED = [
    pytest.param(*pair, id="-on-".join(pair))
    for pair in PAIRS
    if POLICIES[pair[0]].refusal(pair[1]) is None and POLICIES[pair[0]].out_of_range(pair[1]) is not None
]


def names() -> set[str]:
    """Return the names of the policies that a run file may have."""
    return set(specs.POLICIES)


def test_the_table_forgets_no_policy() -> None:
    assert {row.name for row in POLICIES.values()} == names()


def test_the_docs_list_every_policy() -> None:
    text = (Path(__file__).parents[3] / "docs/concepts/policies.md").read_text("utf-8")
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", text, re.MULTILINE)) == names()


@pytest.mark.parametrize(("policy", "mechanism"), ALLOWED)
def test_an_allowed_pair_plays_to_its_horizon_and_keeps_the_best_arm(policy: str, mechanism: MechanismName) -> None:
    """Clients leave; the seeds are fixed."""
    row = POLICIES[policy]
    result = in_process.run(row.file(mechanism, more="[fleet]\ndropout = 0.04"))
    assert (result.policy, result.mechanism) == (row.name, mechanism)
    assert result.fault is None
    assert sum(result.pulls) + result.hidden == row.horizon
    assert result.best is None if row.world in {CONTEXTS, MANY} else result.arms[result.best].active
    cohorts = [cohort for record in result.rounds for cohort in record.cohorts]
    assert any(cohort.estimate is not None for cohort in cohorts)
    assert any((cohort.survivors or cohort.clients) < cohort.clients for cohort in cohorts) or row.name == "ucb1"
    assert result.bits.payload >= 1


@pytest.mark.parametrize(("policy", "mechanism"), REFUSED)
def test_another_pair_is_refused_with_the_reason(policy: str, mechanism: MechanismName) -> None:
    row = POLICIES[policy]
    with pytest.raises(BadParameter, match=row.refusal(mechanism)) as refused:
        in_process.run(row.file(mechanism))
    assert re.match(r"mechanism\.(name|calibration) = '", refused.value.detail)


@pytest.mark.parametrize(("policy", "mechanism"), RANGED)
def test_a_paper_calibration_outside_its_theorem_is_refused_with_the_range(
    policy: str, mechanism: MechanismName
) -> None:
    row = POLICIES[policy]
    with pytest.raises(BadParameter, match=row.out_of_range(mechanism)):
        in_process.run(row.file(mechanism))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_in_a_world_that_it_cannot_play_is_refused(policy: str) -> None:
    row = POLICIES[policy]
    other = SPHERE if row.world == ARMS else ARMS
    with pytest.raises(BadParameter, match=re.escape(f"policy.name = '{row.name}'")):
        row.file("identity", world=other)
