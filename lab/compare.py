"""All the mechanisms side by side: what they promise, how far they miss, what they send, whom they trust."""

from typing import Any, get_args

from rich.table import Table

from common.errors import BadParameter
from common.mechanisms import Calibration, Mechanism, MechanismName
from common.mechanisms.planning import DELTAS
from lab.privacy import check_answers, guaranteed, planned

TAIL = 1e-3
"""The probability whose quantile is shown."""

WIDE = 128
"""Columns of the table; a narrower terminal wraps its lines."""

TRUST = {
    "none": "everybody",
    "central": "server",
    "local": "nobody",
    "distributed": "clients, aggregator",
    "shuffle": "clients, shuffler",
}
LABELLED = "clients, shuffler (sees bits)"
EXPLAINED = (
    "clients: enough of them are honest; aggregator: honest but curious; shuffler: does not collude with the server"
)


def compare(
    *,
    clients: int,
    epsilon: float,
    delta: float | None,
    dropout: float,
    corrupt: float,
    survivors: int | None,
    colluders: int,
    contributions: int,
    target_delta: float | None,
    batches: int | None = None,
) -> dict[str, Any]:
    """One JSON-able object with a row for each mechanism and calibration; a refused one says why.

    Mechanisms that have no δ are planned without; those that need one are refused without.
    """
    check_answers(clients, survivors, colluders)
    asked: dict[str, Any] = {
        "clients": clients,
        "epsilon": epsilon,
        "delta": delta,
        "dropout": dropout,
        "corrupt": corrupt,
    }
    taken = {"survivors": survivors, "colluders": colluders, "contributions": contributions}
    rows = []
    for name in get_args(MechanismName):
        own = {**asked, "delta": delta if name in DELTAS else None, "epsilon": None if name == "identity" else epsilon}
        own["batches"] = batches if name == "tree" else None
        for calibration in get_args(Calibration):
            head = {"mechanism": name, "calibration": calibration}
            try:
                made = planned(name, calibration, **own)
                rows.append({**head, **_row(made, survivors, colluders, contributions, target_delta)})
            except BadParameter as refused:
                rows.append({**head, "refused": str(refused)})
    return {**asked, **taken, "tail": TAIL, "mechanisms": rows}


def table(report: dict[str, Any]) -> Table:
    """For people: one line a mechanism; refused ones at the end, in a sentence each."""
    title = f"n = {report['clients']}, ε = {report['epsilon']:g}"
    shown = Table(title=title, box=None, padding=(0, 2, 0, 0), width=WIDE)
    for head in ("mechanism", "", "guarantee", "std", f"p = {TAIL:g}", "bits", "trust needed"):
        shown.add_column(head, no_wrap=True)
    for row in report["mechanisms"]:
        if "refused" not in row:
            error = (f"{row['error']['std']:.5g}", f"{row['error']['quantile']:.5g}")
            lead = (row["mechanism"], row["calibration"], _promise(row["guarantee"]))
            shown.add_row(*lead, *error, str(row["bits"]), row["trust"])
    refused = [row for row in report["mechanisms"] if "refused" in row]
    reasons = (f"{row['mechanism']} ({row['calibration']}): {row['refused']}" for row in refused)
    shown.caption = "\n".join([EXPLAINED, *reasons])
    return shown


def trust(mechanism: Mechanism) -> str:
    """Who must be honest for the guarantee to hold."""
    model = mechanism.guarantee().model
    return LABELLED if model == "shuffle" and mechanism.width is not None else TRUST[model]


def _row(
    mechanism: Mechanism, survivors: int | None, colluders: int, contributions: int, target: float | None
) -> dict[str, Any]:
    law = mechanism.error(mechanism.clients if survivors is None else survivors)
    promised = guaranteed(mechanism, survivors, colluders, contributions, target)
    return {
        "guarantee": promised.model_dump(mode="json"),
        "error": {"std": law.std, "quantile": law.quantile(TAIL)},
        "bits": mechanism.bits,
        "via": mechanism.via,
        "trust": trust(mechanism),
    }


def _promise(guarantee: dict[str, Any]) -> str:
    if guarantee["epsilon"] is None:
        return "none"
    delta = f", δ = {guarantee['delta']:.3g}" if guarantee["delta"] else ""
    return f"ε = {guarantee['epsilon']:.4g}{delta}"
