"""Prints the calculator's reports as tables: one mechanism with a column a calibration, and all of them in lines."""

from collections.abc import Sequence

from rich.table import Table

from distrust.common.privacy.profile import Profile
from distrust.lab.privacy.calculator import LabelledGuarantee, MechanismFigures, Report, SumError
from distrust.lab.privacy.compare import TAIL, Comparison, Offer
from distrust.lab.privacy.query import PrivacyQuery

UNKNOWN = {"exact": "∞", "bound": "not known"}
"""Text for a missing ε: none is enough, or none was proven."""

WIDE = 128
"""Columns of the comparison; a narrower terminal wraps its lines."""

EXPLAINED = (
    "clients: enough of them are honest; aggregator: does not lie together with the server; "
    "shuffler: does not collude with the server"
)


def report_table(report: Report) -> Table:
    """Return parameters, guarantee, profile, bits and error; refusals and assumptions stand below."""
    sides = {name: side for name, side in report.sides.items() if isinstance(side, MechanismFigures)}
    refused = [f"{name}: {side}" for name, side in report.sides.items() if isinstance(side, str)]
    figures = list(sides.values())
    table = Table("", *sides, title=_title(report.mechanism, report.query))
    for letter in dict.fromkeys(letter for side in figures for letter in side.parameters):
        table.add_row(letter, *(six_digits(side.parameters.get(letter)) for side in figures))
    promises = [side.promise.guarantee for side in figures]
    table.add_row("kind", *(one.kind for one in promises))
    table.add_row("epsilon", *(labelled(one.epsilon, one.how) for one in promises))
    table.add_row("delta", *(six_digits(one.delta) for one in promises))
    profiles = [side.promise.profile for side in figures]
    for label, cells in _profile_rows(profiles):
        table.add_row(label, *cells)
    table.add_row("bits a client", *(six_digits(side.bits) for side in figures))
    for label, cells in _error_rows([side.error for side in figures]):
        table.add_row(label, *cells)
    notes = [*report.query.notes, *promises[0].assumptions, *profiles[0].notes]
    table.caption = "; ".join(dict.fromkeys([*notes, *refused]))
    return table


def six_digits(value: float | None) -> str:
    """Return six digits of a number; whole numbers keep all of theirs, and none is a dash."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def labelled(epsilon: float | None, how: str) -> str:
    """Return a figure with its label: "≤" before a bound."""
    if epsilon is None:
        return UNKNOWN[how]
    return six_digits(epsilon) if how == "exact" else f"≤ {six_digits(epsilon)}"


def _title(mechanism: str, query: PrivacyQuery) -> str:
    title = f"{mechanism}, n = {query.clients}, t = {query.floor}"
    return title if query.dimension == 1 else f"{title}, D = {query.dimension}, {query.norm}"


def _profile_rows(profiles: Sequence[Profile]) -> list[tuple[str, list[str]]]:
    """Return the profile's rows: pure, at δ, and by order."""
    rows = [
        ("pure epsilon", [labelled(one.pure.epsilon, one.pure.how) for one in profiles]),
        (
            f"epsilon at delta = {profiles[0].delta:g}",
            [labelled(one.approximate.epsilon, one.approximate.how) for one in profiles],
        ),
    ]
    for i, (order, _) in enumerate(profiles[0].rdp):
        rows.append((f"RDP({order:g})", [labelled(one.rdp[i][1], one.rdp_how) for one in profiles]))
    return rows


def _error_rows(errors: Sequence[SumError]) -> list[tuple[str, list[str]]]:
    """Return the rows of the noise, in the data's units."""
    rows = [
        (f"error of {errors[0].of}: std", [six_digits(one.std) for one in errors]),
        ("rounding: std at most", [six_digits(one.rounding_std) for one in errors]),
    ]
    for i, (p, _) in enumerate(errors[0].quantiles):
        cells = [labelled(one.quantiles[i][1], one.quantiles_how) for one in errors]
        rows.append((f"|noise| above, p = {p:g}", cells))
    return rows


def comparison_table(comparison: Comparison) -> Table:
    """Return a line for each mechanism and calibration; refused ones stand at the end, in a sentence each."""
    query = comparison.query
    title = f"n = {query.clients}, ε = {query.epsilon:g}"
    if query.contributions > 1:
        title += f", {query.contributions} contributions"
    if comparison.shared_delta:
        title += f", compared at δ = {comparison.shared_delta:g}"
    if query.dimension > 1:
        title += f", D = {query.dimension}, {query.norm}; errors of one coordinate"
    table = Table(title=title, box=None, padding=(0, 2, 0, 0), width=WIDE)
    for head in ("mechanism", "", "guarantee", "std", f"p = {TAIL:g}", "bits", "trust needed"):
        table.add_column(head, no_wrap=True)
    for name, calibration, offer in comparison.rows:
        if isinstance(offer, Offer):
            most = "≤ " if offer.error.quantile_how == "bound" else ""
            error = (f"{offer.error.std:.5g}", f"{most}{offer.error.quantile:.5g}")
            promise = _promise(offer.promise.guarantee)
            table.add_row(name, calibration, promise, *error, str(offer.bits), offer.trust)
    refused = [f"{name} ({calibration}): {one}" for name, calibration, one in comparison.rows if isinstance(one, str)]
    table.caption = "\n".join([*query.notes, EXPLAINED, *refused])
    return table


def _promise(guarantee: LabelledGuarantee) -> str:
    if guarantee.epsilon is None:
        return "none"
    delta = f", δ = {guarantee.delta:.3g}" if guarantee.delta else ""
    sign = "=" if guarantee.how == "exact" else "≤"
    return f"ε {sign} {guarantee.epsilon:.4g}{delta}"
