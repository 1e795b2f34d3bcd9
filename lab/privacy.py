"""What a mechanism promises and costs for one cohort, in both calibrations; no cohort needed."""

import math
from typing import Any, get_args

from rich.table import Table

from common.errors import BadParameter
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
from common.statistics import Reward

WRAP = 1e-6  # p': the run's own value depends on its failure probability, arms and batch
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
) -> dict[str, Any]:
    """One JSON-able object: parameters, guarantee, bits and error of `exact` and of `paper`.

    clients    n. dropout, corrupt: shares of n that may vanish, or collude; they fix the floor t.
    survivors  who answered, for the guarantee and the error; t and n when None. colluders: those who tell their noise.
    Raises     BadParameter, naming the field.
    """
    lost, floor = _floor(clients, dropout, corrupt)
    _check_answers(clients, survivors, colluders)
    both: dict[str, Any] = {}
    for calibration in get_args(Calibration):
        made = planned(
            name, calibration, clients=clients, epsilon=epsilon, delta=delta, dropout=dropout, corrupt=corrupt
        )
        both[calibration] = _one(made, survivors, colluders)
    asked = {
        "clients": clients,
        "least": clients - lost,
        "floor": floor,
        "survivors": survivors,
        "colluders": colluders,
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
) -> Mechanism:
    """The mechanism for one cohort of rewards. Raises BadParameter, naming the field."""
    lost, floor = _floor(clients, dropout, corrupt)
    spec = _spec(name, epsilon, delta, calibration)
    return plan(spec, clients=clients, least=clients - lost, floor=floor, wrap=WRAP, statistic=Reward())


def table(report: dict[str, Any]) -> Table:
    """The report for people: one column a calibration."""
    shown = Table(
        "", *get_args(Calibration), title=f"{report['mechanism']}, n = {report['clients']}, t = {report['floor']}"
    )
    sides = [report[calibration] for calibration in get_args(Calibration)]
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
    shown.caption = "; ".join(sides[0]["guarantee"]["assumptions"])
    return shown


def _one(mechanism: Mechanism, survivors: int | None, colluders: int) -> dict[str, Any]:
    """A calibrated mechanism in numbers, in the data's units."""
    answered = mechanism.clients if survivors is None else survivors
    law = mechanism.error(answered)
    step = (mechanism.high - mechanism.low) / mechanism.precision
    return {
        "parameters": _parameters(mechanism),
        "guarantee": mechanism.guarantee(survivors, colluders).model_dump(mode="json"),
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


def _spec(name: str, epsilon: float | None, delta: float | None, calibration: str) -> MechanismSpec:
    names = get_args(MechanismName)
    if name not in names:
        raise BadParameter("mechanism", name, f"must be one of {', '.join(names)}")
    if calibration not in get_args(Calibration):
        raise BadParameter("calibration", calibration, f"must be one of {', '.join(get_args(Calibration))}")
    words = {"name": name, "epsilon": epsilon, "delta": delta, "calibration": calibration}
    for field, value in (("epsilon", epsilon), ("delta", delta)):
        if value is not None and not math.isfinite(value):
            raise BadParameter(f"mechanism.{field}", value, "must be a finite number")
    spec = MechanismSpec.model_validate(words)
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


def _check_answers(clients: int, survivors: int | None, colluders: int) -> None:
    if survivors is not None and not 1 <= survivors <= clients:
        raise BadParameter("survivors", survivors, f"must lie in [1, clients = {clients}]")
    if not 0 <= colluders <= clients:
        raise BadParameter("colluders", colluders, f"must lie in [0, clients = {clients}]")


def _number(value: float | str | None) -> str:
    """Six digits are enough for people; whole numbers keep all of theirs."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
