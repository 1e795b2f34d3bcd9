"""Tests of the lists of mechanisms and policies: each class states its facts, and no other module knows its name."""

import ast
import importlib
import pkgutil
import typing
from pathlib import Path

import pytest

from distrust.common.bandit.contextual_choice import Link
from distrust.common.dp import mechanisms
from distrust.common.dp.mechanisms import CLASSES, MECHANISMS, Mechanism, MechanismSpec
from distrust.common.extensions import load_reference
from distrust.common.specs.base import PolicySpec
from distrust.common.specs.policy import DEFAULT_POLICY, POLICIES, SPECS
from distrust.server.policies.base import RunFacts
from tests.support.planned import planned

ROOT = Path(__file__).parents[2]


def planned_mechanism(name: str) -> Mechanism:
    kind = MECHANISMS[name]
    fields = {"epsilon": None if kind.model == "none" else 0.5, "delta": 1e-3 if kind.takes_delta else None}
    fields["batches"] = 4 if kind.takes_batches else None
    spec = MechanismSpec.model_validate({"name": name, **fields})
    return planned(spec, 400)


def test_every_mechanism_in_the_folder_is_in_the_list() -> None:
    for module in pkgutil.walk_packages(mechanisms.__path__, mechanisms.__name__ + "."):
        importlib.import_module(module.name)

    def named(kind: type[Mechanism]) -> set[type[Mechanism]]:
        own = {kind} if "name" in kind.model_fields and kind.__module__.startswith(mechanisms.__name__) else set()
        return own.union(*map(named, kind.__subclasses__()))

    assert named(Mechanism) == set(CLASSES)


@pytest.mark.parametrize("name", MECHANISMS)
def test_what_a_mechanism_states_is_what_its_values_do(name: str) -> None:
    kind, one = MECHANISMS[name], planned_mechanism(name)
    assert (type(one), one.name, kind.known_as()) == (kind, name, name)
    assert one.privacy().promise.model == kind.model
    assert one.via == kind.vias[0]
    assert all(isinstance(getattr(one, field), int | float) for field in kind.letters)
    assert (one.stream_length > 1) == kind.takes_batches
    assert kind.searched <= kind.model_fields.keys()
    assert ("noise" in kind.model_fields) == kind.takes_noise


@pytest.mark.parametrize("name", POLICIES)
def test_the_class_that_a_spec_names_starts_from_it_and_says_what_it_plays(name: str) -> None:
    spec = POLICIES[name]
    facts = {
        "arms": {},
        "linear": {"actions": {"kind": "given", "vectors": [[0.6, 0.0], [0.0, 0.5]]}},
        "contextual": {"features": 2},
    }
    words = spec.model_validate({"name": name, **facts[spec.REWARDS]})
    policy = load_reference(spec.POLICY).of(
        words, RunFacts(arms=2, horizon=4000, smallest=1, calibration="exact", laplace_scale=1.0)
    )
    ask = policy.ask(4000)
    assert policy.active == (0, 1)
    assert ask.decision.kind in words.decisions
    assert ask.statistic.kind == spec.STATISTIC
    assert ([query.clients for query in ask.queries] == [1]) == spec.SEQUENTIAL
    assert words.sequential == spec.SEQUENTIAL
    assert 0 < words.longest <= 2_000_000
    stated = words.stated_failure("exact", [(0.01, 3), (0.01, 2)])
    proven = pytest.approx(0.05 if spec.COUNTS else 0.1)
    assert stated in [None, proven], "`stated_failure` is the table's p, or None where no theorem bounds all intervals"


def subclasses(base: type) -> set[type]:
    """Return all classes below `base`, at any depth."""
    return {result for one in base.__subclasses__() for result in (one, *subclasses(one))}


def test_the_list_of_policies_has_every_spec_once() -> None:
    result = {spec for spec in subclasses(PolicySpec) if "name" in spec.model_fields}
    assert set(SPECS) == {spec for spec in result if spec.__module__.startswith("distrust.")}
    assert DEFAULT_POLICY in POLICIES
    assert set(POLICIES.values()) == set(SPECS)


def strings(path: Path) -> set[str]:
    """Return every string constant of a file's code."""
    tree = ast.parse(path.read_text("utf-8"))
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


EXPERTS = ("lab/papers/", "lab/audit/broken.py")
"""Files that may name a mechanism or policy: tables of the papers, and an audit's broken copies."""


def test_no_mechanism_or_policy_is_known_by_name_in_a_service_or_a_driver() -> None:
    files = [
        path
        for folder in ("server", "shuffler", "aggregator", "client", "lab")
        for path in ROOT.glob(f"{folder}/**/*.py")
    ]
    names = {*MECHANISMS, *POLICIES} - {*typing.get_args(Link)}  # "identity" is also a link
    named = {str(path.relative_to(ROOT)): result for path in files if (result := strings(path) & names)}
    assert len(files) > 100
    assert {path: result for path, result in named.items() if not path.startswith(EXPERTS)} == {}
