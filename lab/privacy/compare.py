"""All the mechanisms side by side: what they promise, how far they miss, what they send, whom they trust."""

from dataclasses import replace
from itertools import product
from typing import Any, get_args

from rich.table import Table

from distrust.common.bandit.error_law import ScaledErrorLaw
from distrust.common.errors import BadParameter
from distrust.common.mechanisms import MECHANISMS, Calibration, Mechanism, MechanismName
from distrust.common.mechanisms.base import DELTA_RULE, EPSILON_RULE, delta_allowed, epsilon_allowed
from distrust.common.privacy.composition import own_delta
from distrust.lab.privacy.calculator import check_composed, described, promised
from distrust.lab.privacy.query import PrivacyQuery

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
    "clients: enough of them are honest; aggregator: does not lie together with the server; "
    "shuffler: does not collude with the server"
)


def compare(
    *, survivors: int | None, colluders: int, contributions: int, target_delta: float | None, **words: Any
) -> dict[str, Any]:
    """One JSON-able object with a row for each mechanism and calibration; a refused one says why.

    `words` of a `PrivacyQuery`. Mechanisms that have no δ, stream, s or continuous noise are planned without; those
    that need a δ or a stream are refused without. All rows with a δ are shown at one, `shared_delta`: without a target
    the largest that any of them takes.
    """
    asked = PrivacyQuery(**words)
    _check(asked)
    check_composed(contributions, target_delta)
    answers = asked.answers(survivors, colluders)
    taken = {"survivors": survivors, "colluders": colluders, "contributions": contributions}
    said = described(asked, **taken, target_delta=target_delta)
    planned = [_planned(asked, *pair) for pair in product(MECHANISMS, get_args(Calibration))]
    own = [0.0 if isinstance(one, str) else _delta(one, answers, colluders, contributions) for _, one in planned]
    shared = target_delta or max(own)
    rows = []
    for (head, one), delta in zip(planned, own, strict=True):
        target = shared if delta and delta_allowed(shared) else target_delta
        told = {"refused": one} if isinstance(one, str) else _row(one, survivors, answers, taken, target)
        rows.append({**head, **told})
    return {**said, "shared_delta": shared or None, "tail": TAIL, "mechanisms": rows}


def _planned(asked: PrivacyQuery, name: MechanismName, calibration: str) -> tuple[dict[str, str], Mechanism | str]:
    """A row's head, and the mechanism or why there is none."""
    head = {"mechanism": name, "calibration": calibration}
    try:
        return head, suited(asked, name).planned(name, calibration)
    except BadParameter as refused:
        return head, str(refused)


def _delta(mechanism: Mechanism, answers: int | None, colluders: int, contributions: int) -> float:
    """The δ that all the contributions to one mechanism are shown at when none is asked for; 0 for a pure one."""
    return own_delta(((mechanism.guarantee(answers, colluders), contributions),))


def _check(asked: PrivacyQuery) -> None:
    """Refuse what no mechanism takes; a δ of 0 is refused by those that need one."""
    if asked.epsilon is None or not epsilon_allowed(asked.epsilon):
        raise BadParameter("epsilon", asked.epsilon, EPSILON_RULE)
    if asked.delta and not delta_allowed(asked.delta):
        raise BadParameter("delta", asked.delta, DELTA_RULE)


def suited(asked: PrivacyQuery, name: MechanismName) -> PrivacyQuery:
    """The same question, without the words that this mechanism has no use for."""
    kind = MECHANISMS[name]
    return replace(
        asked,
        epsilon=None if kind.model == "none" else asked.epsilon,
        delta=asked.delta if kind.takes_delta else None,
        batches=asked.batches if kind.takes_batches else None,
        noise=asked.noise if kind.takes_noise else "grid",
        scale=asked.scale if kind.takes_scale else None,
    )


def table(report: dict[str, Any]) -> Table:
    """For people: one line a mechanism; refused ones at the end, in a sentence each."""
    title = f"n = {report['clients']}, ε = {report['epsilon']:g}"
    if report["contributions"] > 1:
        title += f", {report['contributions']} contributions"
    if report["shared_delta"]:
        title += f", compared at δ = {report['shared_delta']:g}"
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
    shown.caption = "\n".join([*report["notes"], EXPLAINED, *reasons])
    return shown


def trust(mechanism: Mechanism) -> str:
    """Who must be honest for the guarantee to hold."""
    model = mechanism.guarantee().model
    return LABELLED if model == "shuffle" and mechanism.width is not None else TRUST[model]


def _row(
    mechanism: Mechanism, survivors: int | None, answers: int | None, taken: dict[str, Any], target: float | None
) -> dict[str, Any]:
    """The promise for those `answers`, and the error of a sum over the survivors; or why nothing is promised."""
    try:
        law = mechanism.error(mechanism.clients if survivors is None else survivors)
        promise = promised(mechanism, answers, taken["colluders"], taken["contributions"], target)
    except BadParameter as refused:
        return {"refused": str(refused)}
    how = law.quantile_how if isinstance(law, ScaledErrorLaw) else "bound"
    return {
        **promise,
        "error": {"std": law.std, "quantile": law.quantile(TAIL), "quantile_how": how},
        "bits": mechanism.bits,
        "via": mechanism.via,
        "trust": trust(mechanism),
    }


def _promise(guarantee: dict[str, Any]) -> str:
    if guarantee["epsilon"] is None:
        return "none"
    delta = f", δ = {guarantee['delta']:.3g}" if guarantee["delta"] else ""
    sign = "=" if guarantee["how"] == "exact" else "≤"
    return f"ε {sign} {guarantee['epsilon']:.4g}{delta}"
