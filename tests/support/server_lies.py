"""The lies that a server tells one client in test_lying_server, and the field that a client's reason names."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx

from distrust.common.mechanisms import MechanismSpec, plan
from distrust.common.run.config import RunConfig
from distrust.common.run.round import Round, RoundView, cohort_terms
from distrust.common.wire import encode_blob

Path_ = tuple[str | int, ...]
"""Where a value stands in a JSON document."""

ACTIONS = {"kind": "given", "vectors": [[1.0, 0.0], [0.0, 1.0]]}
OTHER_KEY = "B" * 42 + "E"

FIRST: Path_ = ("round", "assignments", 0)
CHANNEL: Path_ = (*FIRST, "cohort", "channel")
CHOICES = {
    "calibration": ("exact", "paper"),
    "via": ("aggregator", "shuffler"),
    "norm": ("linf", "l2"),
    "noise": ("grid", "continuous"),
    "model": ("shuffled", "central"),
    "parameters": ("single", "multi"),
    "link": ("identity", "logistic"),
    "residual": ("identity", "logistic"),
}
"""The values of fields that allow a few words only."""
ABSENT: dict[str, Any] = {
    "base": 4,
    "constants": "published-code",
    "beta": 0.01,
    "unsafe": {"noise_seed": 1},
    "budget": {"epsilon": 2.0},
    "returning": {"contributions": 2},
    "via": "shuffler",
    "delta": 1e-3,
    "residual": "identity",
    "screen": {"theta": [[0.0, 0.0]] * 2, "link": "logistic", "margin": 0.1},
    "failure": 0.1,
    "weights": [0.5, 1.0],
}
"""What a field holds that the truth leaves out; 1 where the name is not listed."""
ALIKE = {
    "number": {"cohort.round"},
    "arm": {"cohort.cohort"},
    "mechanism.clients": {"cohort.clients"},
    "mechanism": {"mechanism.epsilon"},  # what is changed in it
    "mechanism.coins": {"mechanism"},  # one less is within rounding, but breaks the promise
    "mechanism.modulus": {"cohort.channel.modulus"},
    "mechanism.precision": {"cohort.channel.width"},
    "decision.only": {"statistic.blocks"},  # where an arm is public, its block alone is reported
    "policy.parameters": {"policy.warm_up"},  # parameters that all arms share have none
    "mechanism.norm": {"mechanism.moved", "mechanism.blocks"},  # steps and blocks are for ℓ₂ balls
    "mechanism.wrap": {"mechanism.modulus"},
    "decision.kind": {"decision"},
    "decision.actions": {"cohort.channel.deal", "cohort.channel.deal.actions"},
    "decision.times": {"cohort.channel.deal", "cohort.channel.deal.times"},
    "statistic.kind": {"statistic"},
    "cohort.channel.kind": {"cohort.channel.deal"},
    "cohort.channel.deal.actions": {"cohort.channel.deal"},
    "cohort.channel.deal.times": {"cohort.channel.deal"},
    "cohort.channel.deal.kind": {"cohort.channel.dealt.deal.kind"},
    "cohort.terms": {"dropout"},  # what is changed in them
}
"""Other fields that a reason may name: one that the changed field contradicts, or that holds it."""
SHOWN = {
    "policy.name": {"cohort.config", "decision", "mechanism.wrap"},
    "policy.model": {"decision"},
    "policy.bound": {"statistic.bound"},
    "mechanism.via": {"cohort.config", "mechanism.via"},  # the mechanism's own choice in words changes the digest only
    "unsafe": {"cohort.config", "cohort.channel.noise_seed"},
    "intermediary.dropout": {"dropout"},
    "intermediary.corrupt": {"corrupt"},
    "intermediary.stage_seconds": {"cohort.stage_seconds"},
}
"""Fields of a round that follow from one of the configuration's."""
UNREADABLE = {
    "version",
    "cohort.version",
    "cohort.channel.deal.kind",
    "mechanism.via",
    "mechanism.norm",
    "mechanism.floor",
}
"""Fields with one legal value on some channel, which leaves no other to tell. A cohort of one client has one floor."""


def leaves(tree: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Every value in a JSON document that is neither an object nor a list; of a list's elements the first."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, (*path, key))
    elif isinstance(tree, list):
        yield from leaves(tree[0], (*path, 0)) if tree else ()
    else:
        yield path, tree


def another(name: str, value: Any) -> Any:
    """A legal value of the field that differs: what an honest client might take for the truth."""
    if value is None:
        return ABSENT.get(name, 1)
    if name in CHOICES:
        return next(one for one in CHOICES[name] if one != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1 if value < 2 or name in {"arms", "modulus"} else value - 1  # legal above a bound
    if isinstance(value, float):
        return value / 2 if value else 0.25
    return OTHER_KEY if len(value) == len(OTHER_KEY) else f"{value}x"


def fitting(parent: dict[str, Any], name: str, value: Any) -> Any:
    """Return another value, as `another` does; where it depends on fields beside it, one that clients can read."""
    if name == "dimension":
        return value + parent["blocks"] if "blocks" in parent else another(name, value)
    return [[1.0, 0.0, 1.0]] * len(parent["theta"]) if name == "inverse" and value is None else another(name, value)


def other_mechanism(round_: Round) -> dict[str, Any]:
    """Another mechanism, planned for the same cohort, intermediary and statistic: the one without noise."""
    altered, spec = round_.mechanism, MechanismSpec(name="identity", via=round_.mechanism.via)
    minimum = round_.assignments[0].cohort.minimum
    frame = {"clients": altered.clients, "min_survivors": minimum, "min_honest": altered.floor}
    planned = plan(spec, **frame, overflow_probability=altered.wrap, statistic=round_.statistic)
    return planned.model_dump(mode="json")


def lie_about(view: Any, path: Path_) -> tuple[Path_, Any]:
    """What takes the place of the truth, and where: of a kind, the whole member of the union; of a list, all of it."""
    round_ = RoundView.model_validate_json(json.dumps(view)).round
    assert round_ is not None
    whole, parent = at(view, path), at(view, path[:-1])
    where, value = path, fitting(parent, str(path[-1]), whole)
    match path:
        case (_, "decision", "kind"):
            where, value = path[:-1], {"kind": "play-design", "actions": [0], "times": [1]}
        case (_, "statistic", "kind"):
            bounded = {"kind": "bounded-reward", "bound": 1.0}
            where, value = path[:-1], bounded if whole == "reward" else {"kind": "reward"}
        case (_, "mechanism", "name"):
            where, value = path[:-1], other_mechanism(round_)
        case (*_, "channel", "kind"):
            bits, sealed = {"kind": "bits", "labels": 1, "width": 1}, {"kind": "sealed", "server_key": OTHER_KEY}
            where, value = path[:-1], bits if whole == "sealed" else {**sealed, "size": parent.get("size", 1)}
        case (*_, "actions", 0):
            where, value = path[:-1], parent[::-1]
        case (*_, "times", 0):
            where, value = path[:-1], [parent[0] - 1, parent[1] + 1]
        case (*_, 0, "mechanism"):
            value = round_.mechanism.model_dump(mode="json") | {"epsilon": 0.5}
        case (*_, "terms"):
            value = json.dumps(json.loads(whole) | {"dropout": 0.2}, sort_keys=True, separators=(",", ":"))
    return where, value


def at(tree: Any, path: Path_) -> Any:
    """The value in the document at this path."""
    for step in path:
        tree = tree[step]
    return tree


def changed(tree: Any, path: Path_, value: Any) -> Any:
    """A copy of the document with the value at one path changed."""
    copy = json.loads(json.dumps(tree))
    at(copy, path[:-1])[path[-1]] = value
    return copy


def consistent(view: Any, path: Path_) -> Any:
    """The same with the channel and the terms of every cohort as the changed round has them."""
    round_ = RoundView.model_validate_json(json.dumps(view)).round
    assert round_ is not None
    for assignment, raw in zip(round_.assignments, view["round"]["assignments"], strict=True):
        mechanism, channel = round_.mechanism_of(assignment), raw["cohort"]["channel"]
        if "mechanism" in path:
            sizes = {"modulus": mechanism.modulus, "width": mechanism.width}
            channel |= {name: size for name, size in sizes.items() if size and name in channel}
        if "decision" in path and round_.decision.kind == channel.get("deal", {}).get("kind"):
            channel["deal"] = view["round"]["decision"]
        raw["cohort"]["terms"] = cohort_terms(round_, assignment.arm, mechanism)
    return view


def lie(raw: bytes, path: Path_, *, whole: bool) -> bytes:
    """The server's answer with one field changed; as it is where it has no such field (the run may be over)."""
    view = json.loads(raw)
    if not view.get("round"):
        return raw
    altered = changed(view, *lie_about(view, path))
    try:
        return json.dumps(consistent(altered, path) if whole else altered).encode()
    except ValueError:  # the change makes a message that no client reads
        return json.dumps(altered).encode()


def lie_about_config(run: Any, path: Path_) -> tuple[Path_, Any]:
    """As `told_instead`, of a configuration."""
    policy = {"name": "vb-sdp-ae"} if "actions" not in run["policy"] else {"name": "dp-pe", "actions": ACTIONS}
    match path:
        case ("policy", "name"):
            return path[:-1], policy
        case ("mechanism", "name"):
            return path, "identity"
        case ("policy", "actions", "kind"):
            return path[:-1], {"kind": "sphere", "count": 2, "dimension": 2, "seed": 1}
    return path, another(str(path[-1]), at(run, path))


def lie_of_config(url: httpx.URL, raw: bytes, *, path: Path_, run: RunConfig, whole: bool) -> bytes:
    """Another configuration of the run for one fleet; where `whole`, with its digest wherever the server has it."""
    altered = json.loads(run.model_dump_json())
    altered = changed(altered, *lie_about_config(altered, path))
    if url.path.endswith("/config"):
        return json.dumps(altered).encode()
    if whole and url.path.endswith("/round"):
        digest = encode_blob(RunConfig.model_validate(altered).digest())
        view = json.loads(raw) | {"config": digest}
        for one in (view.get("round") or {}).get("assignments", ()):
            one["cohort"]["config"] = digest
        return json.dumps(view).encode()
    return raw


def field_of(path: Path_) -> str:
    """The name of a field of a round, as reasons have it: without the round, its assignment, and places in lists."""
    inner = path[len(FIRST) :] if path[: len(FIRST)] == FIRST else path[path[0] == "round" :]
    return ".".join(step for step in inner if isinstance(step, str))


def named(reason: str) -> str:
    """The field that a reason names, in front of the value that was told; without places in lists."""
    field = reason.partition(": ")[2]
    field = re.sub(r"^http://server answered something that is no \w+: (round\.(assignments\.0\.)?)?", "", field)
    field = field.removeprefix("the run's mechanism cannot be planned for this cohort: ")
    field = re.sub(r"^cohort \S+: the (shuffler|aggregator) was told ", "", field)
    found = re.match(r"[a-z_.]+(?=(\[\d+\])*( = |: ))", re.sub(r"\.0(?= = )", "", field))
    return found.group() if found else f"no field in {reason!r}"


def names(reason: str, path: Path_) -> bool:
    """Whether a reason names the changed field: as itself, in the terms, or by its like."""
    own = field_of(path)
    return named(reason).removeprefix("cohort.terms.") in {own, *ALIKE.get(own, ())}


def names_of_config(reason: str, path: Path_, *, whole: bool) -> bool:
    """Whether a reason names the changed field of a configuration.

    Without its digest a client knows that the configuration is another one, not where. With it, and where the
    intermediary alone was told the truth, its digest differs; so does a field of the round that follows from the
    changed one.
    """
    found, own = named(reason), ".".join(map(str, path))
    if path in {("version",), ("run",)}:
        return found == ("version" if path == ("version",) else "config.run")
    if not reason.startswith("refused: "):  # the field has one legal value: no client reads another
        return found in {own, *ALIKE.get(own, ())}
    if not whole:
        return found == "config"
    if path == ("arms",):  # compared with the client's own world
        return found == "config.arms"
    if path[0] == "mechanism" and own not in SHOWN:
        return found.startswith("mechanism.")
    return found in SHOWN.get(own, {"cohort.config", "mechanism.wrap"})  # the policy decides how often sums may wrap
