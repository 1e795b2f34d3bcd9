"""What a run has cost its clients. Every client is in one cohort, so rounds compose in parallel."""

from collections.abc import Sequence

from common.guarantee import Guarantee
from common.messages.run import RunConfig
from server.rounds import RoundRecord

UNIQUE = "every client takes part in one cohort of the run"
OWN = "what each round assumes of its own cohorts holds; the ledger has it round by round"
SEEDED = "unsafe.noise_seed: the privacy noise can be computed by anybody who knows the seed"


def spent(config: RunConfig, record: RoundRecord) -> Guarantee:
    """The guarantee of one round at its floor of honest survivors; none at all when its noise comes from a seed."""
    if config.unsafe is None:
        return record.guarantee
    return record.guarantee.model_copy(
        update={"kind": "none", "epsilon": None, "delta": 0.0, "rdp": (), "assumptions": (SEEDED,)}
    )


def parallel(guarantees: Sequence[Guarantee]) -> Guarantee:
    """The weakest of at least one guarantee: no privacy if any has none, else the largest ε and the largest δ.

    Rényi curves are merged order by order over the orders that all have.
    """
    without = [one for one in guarantees if one.kind == "none" or one.epsilon is None]
    if without:
        return without[0]
    weakest = max(guarantees, key=lambda one: one.epsilon or 0.0)
    delta = max(one.delta for one in guarantees)
    return weakest.model_copy(
        update={"delta": delta, "rdp": _curve(guarantees), "assumptions": _assumptions(guarantees)}
    )


def _assumptions(guarantees: Sequence[Guarantee]) -> tuple[str, ...]:
    """What all rounds assume in the same words, and that the others hold too."""
    shared = [text for text in guarantees[0].assumptions if all(text in one.assumptions for one in guarantees)]
    own = any(text not in shared for one in guarantees for text in one.assumptions)
    return (*shared, *([OWN] if own else []), UNIQUE)


def _curve(guarantees: Sequence[Guarantee]) -> tuple[tuple[float, float], ...]:
    curves = [dict(one.rdp) for one in guarantees]
    shared = [order for order in curves[0] if all(order in curve for curve in curves)]
    return tuple((order, max(curve[order] for curve in curves)) for order in shared)
