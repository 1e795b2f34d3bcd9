"""The report of `distrust privacy` for people: one column a calibration."""

from typing import Any, get_args

from rich.table import Table

from distrust.common.mechanisms import Calibration

UNKNOWN = {"exact": "∞", "bound": "not known"}
"""What no number means: no ε is enough, or none was proven."""


def table(report: dict[str, Any]) -> Table:
    """Parameters, guarantee, profile, bits and error; refusals and assumptions below."""
    calibrations = [calibration for calibration in get_args(Calibration) if "refused" not in report[calibration]]
    shown = Table("", *calibrations, title=_title(report))
    sides = [report[calibration] for calibration in calibrations]
    for key in dict.fromkeys(key for side in sides for key in side["parameters"]):
        shown.add_row(key, *(number(side["parameters"].get(key)) for side in sides))
    promises = [side["guarantee"] for side in sides]
    shown.add_row("kind", *(one["kind"] for one in promises))
    shown.add_row("epsilon", *(labelled(one["epsilon"], one["how"]) for one in promises))
    shown.add_row("delta", *(number(one["delta"]) for one in promises))
    for label, cells in _profiles([side["profile"] for side in sides]):
        shown.add_row(label, *cells)
    shown.add_row("bits a client", *(number(side["bits"]) for side in sides))
    for label, cells in _errors([side["error"] for side in sides]):
        shown.add_row(label, *cells)
    refused = [f"{side}: {report[side]['refused']}" for side in get_args(Calibration) if side not in calibrations]
    notes = [*report["notes"], *promises[0]["assumptions"], *sides[0]["profile"]["notes"]]
    shown.caption = "; ".join(dict.fromkeys([*notes, *refused]))
    return shown


def number(value: float | str | None) -> str:
    """Six digits are enough for people; whole numbers keep all of theirs."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def labelled(epsilon: float | None, how: str) -> str:
    """A figure with its label: "≤" before a bound."""
    if epsilon is None:
        return UNKNOWN[how]
    return number(epsilon) if how == "exact" else f"≤ {number(epsilon)}"


def _title(report: dict[str, Any]) -> str:
    title = f"{report['mechanism']}, n = {report['clients']}, t = {report['floor']}"
    if report["dimension"] == 1:
        return title
    return f"{title}, D = {report['dimension']}, {report['norm']}"


def _profiles(profiles: list[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """Rows of the profile: pure, at δ, and by order."""
    delta = profiles[0]["delta"]
    rows = [
        ("pure epsilon", [labelled(**one["pure"]) for one in profiles]),
        (f"epsilon at delta = {delta:g}", [labelled(**one["approximate"]) for one in profiles]),
    ]
    for i, (order, _) in enumerate(profiles[0]["rdp"]):
        rows.append((f"RDP({order:g})", [labelled(one["rdp"][i][1], one["rdp_how"]) for one in profiles]))
    return rows


def _errors(errors: list[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """Rows of the noise, in the data's units."""
    rows = [
        (f"error of {errors[0]['of']}: std", [number(one["std"]) for one in errors]),
        ("rounding: std at most", [number(one["rounding_std"]) for one in errors]),
    ]
    for i, (p, _) in enumerate(errors[0]["quantiles"]):
        cells = [labelled(one["quantiles"][i][1], one["quantiles_how"]) for one in errors]
        rows.append((f"|noise| above, p = {p:g}", cells))
    return rows
