"""The closing table: what was learned, what it cost, and what is promised."""

import re
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from common.messages.progress import ArmView
from lab.result import Result

_NUMBER = re.compile(r"(?<![\w^.-])\d+(?![\w.])")


def print_result(result: Result, out: Console) -> None:
    """The arms with their intervals, then the facts of the run, one a line."""
    out.print(_arms(result))
    facts = Table.grid(padding=(0, 2))
    for name, fact in _facts(result):
        facts.add_row(name, fact)
    out.print(facts)
    for assumption in merged(result.guarantee.assumptions):
        out.print(f"  assumes: {assumption}", markup=False)


def merged(assumptions: Sequence[str]) -> list[str]:
    """Sentences that differ from round to round only in one number, said once: "at least 2 to 64 (by round) …"."""
    families: dict[str, list[str]] = {}
    for sentence in assumptions:
        families.setdefault(_NUMBER.sub("#", sentence), []).append(sentence)
    return [_merge(family) for family in families.values()]


def _merge(family: list[str]) -> str:
    """The first sentence, with the range of the first number that changes."""
    numbers = [[int(number) for number in _NUMBER.findall(sentence)] for sentence in family]
    for place, values in enumerate(zip(*numbers, strict=True)):
        if min(values) < max(values):
            match = list(_NUMBER.finditer(family[0]))[place]
            span = f"{min(values)} to {max(values)} (by round)"
            return family[0][: match.start()] + span + family[0][match.end() :]
    return family[0]


def _arms(result: Result) -> Table:
    columns = ("arm", "pulls", "estimate", "confidence interval", "")
    table = Table(*columns, title=f"run {result.run}", title_justify="left")
    for column in table.columns[:4]:
        column.justify = "right"
    for arm in result.arms:
        mean = "" if arm.mean is None else f"{arm.mean:.4f}"
        table.add_row(str(arm.arm), f"{arm.pulls:,}", mean, _interval(arm), _fate(arm, result))
    return table


def _interval(arm: ArmView) -> str:
    return "" if arm.lower is None or arm.upper is None else f"[{arm.lower:.4f}, {arm.upper:.4f}]".replace("[", r"\[")


def _fate(arm: ArmView, result: Result) -> str:
    if arm.arm == result.chosen:
        return "chosen"
    return "active" if arm.active else f"dropped after round {arm.eliminated}"


def _facts(result: Result) -> list[tuple[str, str]]:
    facts = [
        ("arm chosen", f"{result.chosen} (the clients' world says {result.best} is best)"),
        ("pulls", f"{sum(result.pulls):,} of {result.horizon:,}, {result.unfinished:,} of them in an unfinished batch"),
        ("regret", f"{result.regret.final:,.1f}"),
        ("rounds", f"{len(result.rounds)}, with {result.aborted} cohorts aborted and replaced"),
        ("mechanism", f"{result.mechanism}, {result.calibration} calibration"),
        ("guarantee", f"{result.guarantee.line()}; neighbours: {result.guarantee.neighbours}"),
        ("payload", f"{result.bits.payload:.1f} bits per client; ⌈log₂ m⌉ = {result.bits.modulus:.1f} bits"),
    ]
    if result.bits.wire is not None:
        facts.append(("wire", f"{result.bits.wire:,.0f} bytes per client, both ways, headers and retries included"))
    facts.append(("speed", f"{result.clients_per_second:,.0f} clients per second, {result.seconds:.1f} s in all"))
    return facts
