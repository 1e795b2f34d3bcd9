"""All the mechanisms side by side: what they promise, how far they miss, what they send, whom they trust."""

from dataclasses import replace
from typing import Any, get_args

from rich.table import Table

from common.errors import BadParameter
from common.mechanisms import Calibration, Mechanism, MechanismName
from common.mechanisms.checks import DELTA_RULE, EPSILON_RULE, delta_allowed, epsilon_allowed
from common.mechanisms.planning import DELTAS, REAL, SCALED
from common.mechanisms.scaled import Scaled
from lab.asked import Asked
from lab.privacy import check_composed, described, promised

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
    *, survivors: int | None, colluders: int, contributions: int, target_delta: float | None, **words: Any
) -> dict[str, Any]:
    """One JSON-able object with a row for each mechanism and calibration; a refused one says why.

    `words` of an `Asked`. Mechanisms that have no δ, stream, s or continuous noise are planned without; those that
    need a δ or a stream are refused without.
    """
    asked = Asked(**words)
    _check(asked)
    check_composed(contributions, target_delta)
    asked.check_answers(survivors, colluders)
    taken = {"survivors": survivors, "colluders": colluders, "contributions": contributions}
    rows = []
    for name in get_args(MechanismName):
        own = suited(asked, name)
        for calibration in get_args(Calibration):
            head = {"mechanism": name, "calibration": calibration}
            try:
                made = own.planned(name, calibration)
                rows.append({**head, **_row(made, survivors, colluders, contributions, target_delta)})
            except BadParameter as refused:
                rows.append({**head, "refused": str(refused)})
    said = {**described(asked), "dropout": asked.dropout, "corrupt": asked.corrupt}
    return {**said, **taken, "tail": TAIL, "mechanisms": rows}


def _check(asked: Asked) -> None:
    """Refuse what no mechanism takes; a δ of 0 is refused by those that need one."""
    if asked.epsilon is None or not epsilon_allowed(asked.epsilon):
        raise BadParameter("epsilon", asked.epsilon, EPSILON_RULE)
    if asked.delta and not delta_allowed(asked.delta):
        raise BadParameter("delta", asked.delta, DELTA_RULE)


def suited(asked: Asked, name: MechanismName) -> Asked:
    """The same question, without the words that this mechanism has no use for."""
    return replace(
        asked,
        epsilon=None if name == "identity" else asked.epsilon,
        delta=asked.delta if name in DELTAS else None,
        batches=asked.batches if name == "tree" else None,
        noise=asked.noise if name in REAL else "grid",
        scale=asked.scale if name in SCALED else None,
    )


def table(report: dict[str, Any]) -> Table:
    """For people: one line a mechanism; refused ones at the end, in a sentence each."""
    title = f"n = {report['clients']}, ε = {report['epsilon']:g}"
    if report["dimension"] > 1:
        title += f", D = {report['dimension']}, {report['norm']}; errors of one coordinate"
    shown = Table(title=title, box=None, padding=(0, 2, 0, 0), width=WIDE)
    for head in ("mechanism", "", "guarantee", "std", f"p = {TAIL:g}", "bits", "trust needed"):
        shown.add_column(head, no_wrap=True)
    for row in report["mechanisms"]:
        if "refused" not in row:
            most = "≤ " if row["error"]["quantile_how"] == "bound" else ""
            error = (f"{row['error']['std']:.5g}", f"{most}{row['error']['quantile']:.5g}")
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
    how = law.quantile_how if isinstance(law, Scaled) else "bound"
    return {
        **promised(mechanism, survivors, colluders, contributions, target),
        "error": {"std": law.std, "quantile": law.quantile(TAIL), "quantile_how": how},
        "bits": mechanism.bits,
        "via": mechanism.via,
        "trust": trust(mechanism),
    }


def _promise(guarantee: dict[str, Any]) -> str:
    if guarantee["epsilon"] is None:
        return "none"
    delta = f", δ = {guarantee['delta']:.3g}" if guarantee["delta"] else ""
    return f"ε = {guarantee['epsilon']:.4g}{delta}"
