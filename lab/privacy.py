"""What a mechanism promises and costs for one cohort, in both calibrations; no cohort needed."""

import math
from typing import Any, get_args

from rich.table import Table

from common.composition import LONGEST, compose, compose_exactly
from common.errors import BadParameter
from common.guarantee import Guarantee
from common.mechanisms import (
    Calibration,
    DistributedSkellam,
    Mechanism,
    MechanismName,
    MechanismSpec,
    ShuffledBinomial,
    check_spec,
    plan,
)
from common.mechanisms.laplace import LaplaceLike
from common.noise import Binomial, PolyaDifference, Skellam
from common.noise.law import Pmf
from common.statistics import Reward

WRAP = 1e-6  # p': the run's own value depends on its failure probability, arms and batch
MOST = 10_000  # contributions
TAILS = (0.5, 0.1, 0.01, 1e-3, 1e-6, 1e-9, 1e-12)


def report(
    name: str,
    *,
    clients: int,
    epsilon: float | None,
    delta: float | None,
    dropout: float,
    corrupt: float,
    survivors: int | None,
    colluders: int,
    contributions: int = 1,
    target_delta: float | None = None,
    batches: int | None = None,
) -> dict[str, Any]:
    """One JSON-able object: parameters, guarantee, bits and error of `exact` and of `paper`.

    clients    n. dropout, corrupt: shares of n that may vanish, or collude; they fix the floor t.
    survivors  who answered, for the guarantee and the error; t and n when None. colluders: those who tell their noise.
    batches    length of the stream, for `tree`.
    contributions  cohorts like this that one client takes part in; `target_delta`: δ that their sum is shown at.
    Raises     BadParameter, naming the field. Where only `paper` is refused, its place says why.
    """
    lost, floor = _floor(clients, dropout, corrupt)
    check_answers(clients, survivors, colluders)
    words: dict[str, Any] = {"clients": clients, "epsilon": epsilon, "delta": delta, "batches": batches}
    words |= {"dropout": dropout, "corrupt": corrupt}
    both: dict[str, Any] = {}
    for calibration in get_args(Calibration):
        try:
            made = planned(name, calibration, **words)
        except BadParameter as error:
            if calibration == "exact":
                raise
            both[calibration] = {"refused": str(error)}
            continue
        composed = guaranteed(made, survivors, colluders, contributions, target_delta)
        both[calibration] = {**_one(made, survivors), "guarantee": composed.model_dump(mode="json")}
    asked = {
        "clients": clients,
        "least": clients - lost,
        "floor": floor,
        "survivors": survivors,
        "colluders": colluders,
        "contributions": contributions,
    }
    return {"mechanism": name, "epsilon": epsilon, "delta": delta, **asked, "wrap": WRAP, **both}


def planned(
    name: str,
    calibration: str,
    *,
    clients: int,
    epsilon: float | None,
    delta: float | None,
    dropout: float,
    corrupt: float,
    batches: int | None = None,
) -> Mechanism:
    """The mechanism for one cohort of rewards. Raises BadParameter, naming the field."""
    lost, floor = _floor(clients, dropout, corrupt)
    spec = _spec({"name": name, "epsilon": epsilon, "delta": delta, "calibration": calibration, "batches": batches})
    return plan(spec, clients=clients, least=clients - lost, floor=floor, wrap=WRAP, statistic=Reward())


def table(report: dict[str, Any]) -> Table:
    """The report for people: one column a calibration."""
    calibrations = [calibration for calibration in get_args(Calibration) if "refused" not in report[calibration]]
    shown = Table("", *calibrations, title=f"{report['mechanism']}, n = {report['clients']}, t = {report['floor']}")
    sides = [report[calibration] for calibration in calibrations]
    for key in dict.fromkeys(key for side in sides for key in side["parameters"]):
        shown.add_row(key, *(_number(side["parameters"].get(key)) for side in sides))
    for key in ("kind", "epsilon", "delta"):
        shown.add_row(key, *(_number(side["guarantee"][key]) for side in sides))
    for order, _ in sides[0]["guarantee"]["rdp"]:
        shown.add_row(f"RDP({order:g})", *(_number(dict(side["guarantee"]["rdp"]).get(order)) for side in sides))
    shown.add_row("bits a client", *(_number(side["bits"]) for side in sides))
    shown.add_row("error of the sum: std", *(_number(side["error"]["std"]) for side in sides))
    shown.add_row("rounding: std at most", *(_number(side["error"]["rounding_std"]) for side in sides))
    for i, p in enumerate(TAILS):
        shown.add_row(f"|noise| above, p = {p:g}", *(_number(side["error"]["quantiles"][i][1]) for side in sides))
    refused = [f"{side}: {report[side]['refused']}" for side in get_args(Calibration) if side not in calibrations]
    shown.caption = "; ".join([*sides[0]["guarantee"]["assumptions"], *refused])
    return shown


def guaranteed(
    mechanism: Mechanism, survivors: int | None, colluders: int, contributions: int, target_delta: float | None
) -> Guarantee:
    """The guarantee for a client that takes part in `contributions` such cohorts, composed at `target_delta`.

    Where the released law is known and log-concave, its own loss distribution is composed if that is better.
    """
    if not 1 <= contributions <= MOST:
        raise BadParameter("contributions", contributions, f"must lie in [1, {MOST}]")
    if target_delta is not None and not 0 < target_delta < 0.5:
        raise BadParameter("target-delta", target_delta, "must lie in (0, 1/2)")
    once = mechanism.guarantee(survivors, colluders)
    composed = compose(((once, contributions),), target_delta)
    honest = (mechanism.floor if survivors is None else survivors) - colluders
    pmf = released(mechanism, honest)
    if pmf is None or composed.delta == 0 or composed.epsilon is None or contributions == 1:
        return composed
    exact = compose_exactly(pmf, mechanism.precision, contributions, composed.delta)
    if exact >= composed.epsilon:
        return composed
    return composed.model_copy(update={"kind": "approximate", "epsilon": exact, "rdp": ()})


def released(mechanism: Mechanism, honest: int) -> Pmf | None:
    """The law of the noise that the guarantee rests on, where it is one log-concave law of integers; else None.

    Noise of fewer honest clients than the floor need not be log-concave, and vectors have no single law.
    """
    model = mechanism.guarantee().model
    if mechanism.dimension != 1 or model not in {"distributed", "shuffle"} or honest < mechanism.floor:
        return None
    law = getattr(mechanism.error(honest), "law", None)
    if not isinstance(law, PolyaDifference | Skellam | Binomial):
        return None
    pmf = law.pmf()
    return pmf if pmf.logs.size <= LONGEST else None


def _one(mechanism: Mechanism, survivors: int | None) -> dict[str, Any]:
    """A calibrated mechanism in numbers, in the data's units."""
    answered = mechanism.clients if survivors is None else survivors
    law = mechanism.error(answered)
    step = (mechanism.high - mechanism.low) / mechanism.precision
    return {
        "parameters": _parameters(mechanism),
        "bits": mechanism.bits,
        "via": mechanism.via,
        "error": {
            "survivors": answered,
            "std": law.std,
            "rounding_std": math.sqrt(answered) / 2 * step,
            "quantiles": [[p, law.quantile(p)] for p in TAILS],
        },
    }


def _parameters(mechanism: Mechanism) -> dict[str, float]:
    """The theorem's letters, where the mechanism has them."""
    shared: dict[str, float] = {"g": mechanism.precision, "m": mechanism.modulus}
    if isinstance(mechanism, ShuffledBinomial):
        return {**shared, "b": mechanism.coins, "p": mechanism.chance}
    shared["tau"] = (mechanism.modulus - mechanism.clients * mechanism.precision - 1) // 2
    if isinstance(mechanism, DistributedSkellam):
        return {**shared, "variance": mechanism.variance}
    if isinstance(mechanism, LaplaceLike):
        return {**shared, "scale": mechanism.scale}
    return shared


def _spec(words: dict[str, Any]) -> MechanismSpec:
    for field, known in (("mechanism", get_args(MechanismName)), ("calibration", get_args(Calibration))):
        given = words["name" if field == "mechanism" else field]
        if given not in known:
            raise BadParameter(field, given, f"must be one of {', '.join(known)}")
    for field in ("epsilon", "delta"):
        if words[field] is not None and not math.isfinite(words[field]):
            raise BadParameter(f"mechanism.{field}", words[field], "must be a finite number")
    spec = MechanismSpec.model_validate({field: value for field, value in words.items() if value is not None})
    check_spec(spec, Reward())
    return spec


def _floor(clients: int, dropout: float, corrupt: float) -> tuple[int, int]:
    """Clients that may be lost, and t: what is left of the least survivors without the colluders, at least 1."""
    if not 1 <= clients <= 1_000_000:
        raise BadParameter("clients", clients, "must lie in [1, 1000000]")
    for field, share in (("dropout", dropout), ("corrupt", corrupt)):
        if not 0 <= share < 0.5:
            raise BadParameter(field, share, "must lie in [0, 1/2)")
    lost = math.floor(dropout * clients)
    return lost, max(1, clients - lost - math.floor(corrupt * clients))


def check_answers(clients: int, survivors: int | None, colluders: int) -> None:
    """Refuse more answers than clients. Raises BadParameter."""
    if survivors is not None and not 1 <= survivors <= clients:
        raise BadParameter("survivors", survivors, f"must lie in [1, clients = {clients}]")
    if not 0 <= colluders <= clients:
        raise BadParameter("colluders", colluders, f"must lie in [0, clients = {clients}]")


def _number(value: float | str | None) -> str:
    """Six digits are enough for people; whole numbers keep all of theirs."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
