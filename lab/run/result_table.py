"""Prints a result: the arms' estimates, their cost, and the promise to clients."""

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from distrust.common.run.progress import ArmView
from distrust.lab.run.result import Bits, PolicyFailures, Result


def print_result(result: Result, out: Console) -> None:
    """Print the arms with their intervals, then the facts of the run, one a line."""
    out.print(_arms(result))
    for name, fact in _facts(result):
        out.print(f"{name:<10}  {fact}", markup=False)


def _payload(bits: Bits) -> str:
    """Return the bits per client. They are means over the run, in which m differs from round to round."""
    travels = "" if bits.sent is None else f"; {bits.sent:.1f} as they travel"
    return f"{bits.payload:.1f} bits per client, ⌈log₂ m⌉ = {bits.modulus:.1f}{travels}"


def _failures(failures: PolicyFailures) -> str:
    """Return the policy's failures, and the probability that it states for them."""
    kept = f"dropped after {failures.best_dropped_at:,} pulls" if failures.best_dropped else "kept"
    stated = "" if failures.failure is None else f" (p = {failures.failure:.3g} that any does)"
    shifted = f"; {failures.indefinite:,} batches left the matrix indefinite" if failures.indefinite else ""
    missed = f"{failures.width_failures:,} of {failures.widths:,} intervals miss the true mean{stated}"
    return f"best arm {kept}; {missed}{shifted}"


def _spent(result: Result) -> str:
    """Return the clients' largest expense, by how often they took part."""
    return "; ".join(f"{one.guarantee.figures()} for a client that came {one.contributions} ×" for one in result.spent)


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


def most_common(refusals: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the three reasons that most clients gave, and the clients of each."""
    return sorted(refusals.items(), key=lambda one: -one[1])[:3]


def _liars(result: Result) -> str:
    """Return the number of clients that the aggregator named as liars, and of disputes; empty if there are none."""
    cohorts = [cohort for one in result.rounds for cohort in one.cohorts]
    named, disputes = sum(len(one.liars) for one in cohorts), sum(one.disputes for one in cohorts)
    if not named and not disputes:
        return ""
    return f"{named} clients with false boxes, shares or accusations, {disputes} disputed pairs"


def _aborted(result: Result) -> list[str]:
    """Return why the first three aborted cohorts ended, where the services report it."""
    cohorts = [cohort for one in result.rounds for cohort in one.cohorts]
    return [f"{one.cohort}: {one.reason}" for one in cohorts if one.reason is not None][:3]


def _chosen(result: Result) -> tuple[str, str]:
    if result.best is None:
        return ("arms", "each client chooses by its own context, and the server does not learn which")
    return ("arm chosen", f"{result.chosen} (the clients' world says {result.best} is best)")


def _facts(result: Result) -> list[tuple[str, str]]:
    pulls = sum(result.pulls) + result.hidden
    facts = [
        _chosen(result),
        ("pulls", f"{pulls:,} of {result.horizon:,}, {result.unfinished:,} of them after the last whole batch"),
        *([("clipped", f"{result.clipped:,} contexts of the data, to length 1")] if result.clipped else []),
        ("regret", f"{result.regret.final:,.1f}"),
        ("failures", _failures(result.events)),
        ("rounds", f"{len(result.rounds)}, with {result.aborted} cohorts aborted and replaced"),
        *(("aborted", why) for why in _aborted(result)),
        *(("refused", f"{clients:,} clients: {why}") for why, clients in most_common(result.refusals)),
        *([("liars", _liars(result))] if _liars(result) else []),
        ("mechanism", f"{result.mechanism}, {result.calibration} calibration"),
        ("guarantee", f"{result.guarantee.line()}; neighbours: {result.guarantee.neighbours}"),
        *([("spent", _spent(result))] if len(result.spent) > 1 else []),
        *(("assumes", assumption) for assumption in result.guarantee.assumptions),
        ("payload", _payload(result.bits)),
    ]
    if result.bits.wire is not None:
        facts.append(("wire", f"{result.bits.wire:,.0f} bytes per client, both ways, all stages, headers included"))
    facts.append(("speed", f"{result.clients_per_second:,.0f} clients per second, {result.seconds:.1f} s in all"))
    return facts
