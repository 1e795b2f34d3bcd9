"""Describes runs for the pages: contexts of the templates, made of the messages that the API serves to everyone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from distrust.common.errors import RunFailed
from distrust.common.privacy.guarantee import Guarantee
from distrust.common.run.progress import RunLine, RunList, RunView

RUNS = 25  # on one page of the list


class Runs(Protocol):
    """The public side of the server's service, as pages read it. Raises WrongCohort for unknown runs."""

    def runs(self) -> RunList: ...
    def view(self, run: str) -> RunView: ...


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run in the list. `view` is None for one that cannot be read; left: arms that are not dropped."""

    run: str
    state: str
    mechanism: str
    horizon: int
    arms: int
    view: RunView | None = None
    left: int = 0
    promise: str = ""


def runs_context(service: Runs, before: int | None = None) -> dict[str, Any]:
    """Return the context of the list: the newest runs, or those before number `before` (from 1, in creation order)."""
    lines = service.runs().runs
    end = len(lines) if before is None else min(before - 1, len(lines))
    start = max(0, end - RUNS)
    shown = [_listed(service, line) for line in reversed(lines[start:end])]
    return {
        "lines": shown,
        "older": start + 1 if start else None,
        "running": any(one.state == "running" for one in shown),
        "comparable": [one.run for one in shown if one.view is not None] if len(shown) > 1 else [],
    }


def _listed(service: Runs, line: RunLine) -> ListedRun:
    listed = ListedRun(line.run, line.state, line.mechanism, line.horizon, line.arms)
    try:
        view = service.view(line.run)
    except RunFailed:  # its stored configuration cannot be read
        return listed
    left = sum(arm.active for arm in view.snapshot.arms)
    promise = view.snapshot.guarantee.figures()
    return ListedRun(line.run, view.state, line.mechanism, line.horizon, line.arms, view, left, promise)


def number(value: float) -> str:
    """Return a number with separators of thousands, decimals only where it has some."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"


def promise(guarantee: Guarantee) -> str:
    """Return a guarantee in one line."""
    return guarantee.line()


FILTERS: dict[str, Callable[..., str]] = {"number": number, "promise": promise}
"""Jinja's filters of all templates."""
