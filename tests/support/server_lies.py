"""The lies that a server tells one fleet in test_lying_server, and the field that a client's reason names."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import httpx
from fastapi import FastAPI

from distrust.common.dp.mechanisms import MechanismSpec, plan
from distrust.common.protocol.crypto.context import run_digest
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.round import Round, RoundView, cohort_terms
from distrust.common.wire import decode_blob, encode_blob
from tests.support.recording import Exchange, RecordingTransport

Path_ = tuple[str | int, ...]
"""Place of a value in a JSON document."""

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
"""Two legal values of each field that allows a few words only."""
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
"""The false values of fields that are absent in the truth; 1 for a field that is not listed."""
ALIKE = {
    "number": {"cohort.round"},
    "arm": {"cohort.cohort"},
    "mechanism.clients": {"cohort.clients"},
    "mechanism": {"mechanism.epsilon"},  # the lie changes its ε
    "mechanism.modulus": {"cohort.channel.modulus"},
    "mechanism.precision": {"cohort.channel.width"},
    "decision.only": {"statistic.blocks"},  # where an arm is public, clients report its block alone
    "policy.parameters": {"policy.warm_up"},  # parameters that all arms share have none
    "mechanism.norm": {"mechanism.moved", "mechanism.blocks"},  # steps and blocks are for ℓ₂ balls
    "mechanism.wrap": {"mechanism.modulus"},
    "mechanism.variance": {"mechanism.modulus"},  # it has room for the noise that was told
    "mechanism.local": {"mechanism.modulus"},
    "mechanism.coins": {"mechanism.modulus", "mechanism.chance"},
    "decision.kind": {"decision"},
    "decision.actions": {"cohort.channel.deal", "cohort.channel.deal.actions"},
    "decision.times": {"cohort.channel.deal", "cohort.channel.deal.times"},
    "statistic.kind": {"statistic"},
    "cohort.channel.kind": {"cohort.channel.deal"},
    "cohort.channel.deal.actions": {"cohort.channel.deal"},
    "cohort.channel.deal.times": {"cohort.channel.deal"},
    "cohort.channel.deal.kind": {"cohort.channel.dealt.deal.kind"},
    "run_id": {"cohort.run_digest"},
    "cohort.terms": {"dropout"},  # the lie changes their dropout
}
"""Other fields that a reason may name: fields that the changed field contradicts, or fields that contain it."""
UNREADABLE = {
    "version",
    "cohort.version",
    "cohort.channel.deal.kind",
    "mechanism.via",
    "mechanism.norm",
    "mechanism.floor",
}
"""Fields with a single legal value on some channel: any lie is unreadable. A cohort of one client has one floor."""


def leaves(tree: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Yield the path and value of every leaf of a JSON document; of a list only those of its first element."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, (*path, key))
    elif isinstance(tree, list):
        yield from leaves(tree[0], (*path, 0)) if tree else ()
    else:
        yield path, tree


def another(name: str, value: Any) -> Any:
    """Return another legal value of the field, which a client cannot refuse for its form."""
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
    """Return another value of a field, which clients can read also where it depends on the fields beside it."""
    if name == "dimension":
        return value + parent["blocks"] if "blocks" in parent else another(name, value)
    return [[1.0, 0.0, 1.0]] * len(parent["theta"]) if name == "inverse" and value is None else another(name, value)


def other_mechanism(round_: Round) -> dict[str, Any]:
    """Return the mechanism without noise, planned for a round's cohort, intermediary and statistic."""
    altered, spec = round_.mechanism, MechanismSpec(name="identity", via=round_.mechanism.via)
    minimum = round_.assignments[0].cohort.minimum
    frame = {"clients": altered.clients, "min_survivors": minimum, "min_honest": altered.floor}
    planned = plan(spec, **frame, overflow_probability=altered.wrap, statistic=round_.statistic)
    return planned.model_dump(mode="json")


def lie_about(view: Any, path: Path_) -> tuple[Path_, Any]:
    """Return the path to replace for a lie about the value at `path`, and the false value.

    For a field `kind` the path is that of the whole object, for an element of a list that of the list.
    """
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
    """Return the value in the document at this path."""
    for step in path:
        tree = tree[step]
    return tree


def changed(tree: Any, path: Path_, value: Any) -> Any:
    """Return a copy of the document with the value at one path changed."""
    copy = json.loads(json.dumps(tree))
    at(copy, path[:-1])[path[-1]] = value
    return copy


def consistent(view: Any, path: Path_) -> Any:
    """Fit the channel and the terms of every cohort to the changed field of a round view, and return the view."""
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
    """Return the server's answer with one field changed; unchanged if it has no round, as when the run is over."""
    view = json.loads(raw)
    if not view.get("round"):
        return raw
    altered = changed(view, *lie_about(view, path))
    try:
        return json.dumps(consistent(altered, path) if whole else altered).encode()
    except ValueError:  # the change makes a message that no client reads
        return json.dumps(altered).encode()


def lie_about_config(run: Any, path: Path_) -> tuple[Path_, Any]:
    """Return the path to replace for a lie about a field of a configuration, and the false value. See `lie_about`."""
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
    """Return the server's answer to one fleet, changed by a lie about the run's configuration.

    whole   also the digests in rounds are those of the changed configuration.
    """
    altered = json.loads(run.model_dump_json())
    altered = changed(altered, *lie_about_config(altered, path))
    if url.path.endswith("/config"):
        return json.dumps(altered).encode()
    if not whole:
        return raw
    digest = RunConfig.model_validate(altered).digest()

    def with_digest(view: Any) -> Any:
        named = run_digest(digest, _raw(view["run_id"]))
        for one in (view.get("round") or {}).get("assignments", ()):
            one["cohort"]["run_digest"] = encode_blob(named)
        return view | {"config": encode_blob(digest)}

    return tampered_view(url, raw, with_digest)


def _raw(text: str) -> bytes:
    raw = decode_blob(text)
    assert isinstance(raw, bytes)
    return raw


def tampered_view(
    url: httpx.URL, raw: bytes, change: Callable[[Any], Any], *, where: Sequence[str] = ("round", "tickets")
) -> bytes:
    """Return an answer of the server with another view of the round: that to GET /round, and that beside tickets."""
    route = url.path.rpartition("/")[2]
    if route not in where:
        return raw
    answer = json.loads(raw)
    if route == "round":
        return json.dumps(change(answer)).encode()
    return json.dumps(answer | {"view": change(answer["view"])} if "view" in answer else answer).encode()


class EarlyRounds(RecordingTransport):
    """A fleet's transport that shows the run as finished when round `first` opens. The fleet takes no ticket of it."""

    def __init__(self, first: int, apps: Mapping[str, FastAPI], exchanges: list[Exchange]) -> None:
        super().__init__("before", apps, exchanges)
        self._first = first

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/tickets"):
            return await super().handle_async_request(request)
        run, wanted = request.url.path.removesuffix("/tickets"), json.loads(await request.aread())
        while True:
            view = json.loads((await self._call("GET", f"http://server{run}/round")).content)
            if view.get("round") is None or view["round"]["number"] >= self._first:
                ended = view | {"round": None, "state": "finished"}
                return httpx.Response(200, json={"grants": [], "view": ended})
            named = wanted | {"round": view["round"]["number"]}
            shown = {"Authorization": request.headers["Authorization"]}
            answer = await self._call("POST", f"http://server{run}/tickets", named, shown)
            if answer.is_success:
                return httpx.Response(200, json=json.loads(answer.content) | {"view": view})

    async def _call(
        self, method: str, url: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        return await super().handle_async_request(httpx.Request(method, url, json=body, headers=headers))


def field_of(path: Path_) -> str:
    """Return the name of a field as reasons have it: without the round, its assignment, and indices of lists."""
    inner = path[len(FIRST) :] if path[: len(FIRST)] == FIRST else path[path[0] == "round" :]
    return ".".join(step for step in inner if isinstance(step, str))


def named(reason: str) -> str:
    """Return the field that a reason names, in front of the value that was told, without indices of lists."""
    field = reason.partition(": ")[2]
    field = re.sub(r"^http://server answered something that is no \w+: (round\.(assignments\.0\.)?)?", "", field)
    field = field.removeprefix("the run's mechanism cannot be planned for this cohort: ")
    field = re.sub(r"^cohort \S+: the (shuffler|aggregator) was told ", "", field)
    field = re.sub(r"^mechanism: (?=[a-z]+ = )", "mechanism.", field)  # the numbers that break the promise
    result = re.match(r"[a-z_.]+(?=(\[\d+\])*( = |: ))", re.sub(r"\.0(?= = )", "", field))
    return result.group() if result else f"no field in {reason!r}"


def names(reason: str, path: Path_) -> bool:
    """Return True if a reason names the changed field, the field inside the terms, or one of `ALIKE`."""
    own = field_of(path)
    return named(reason).removeprefix("cohort.terms.") in {own, *ALIKE.get(own, ())}


def names_of_config(reason: str, path: Path_) -> bool:
    """Return True if a reason names the configuration whose field was changed, or the field where it tells which.

    The client sees that the configuration differs from its digest, but not in which field.
    """
    result, own = named(reason), ".".join(map(str, path))
    if path in {("version",), ("run",)}:
        return result == ("version" if path == ("version",) else "config.run")
    if not reason.startswith("refused: "):  # the field has one legal value: no client reads another
        return result in {own, *ALIKE.get(own, ())}
    return result == "config"
