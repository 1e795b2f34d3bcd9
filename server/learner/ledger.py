"""What a run has cost its clients, round by round, on the common ledger."""

from collections.abc import Sequence

from distrust.common.mechanisms import Mechanism
from distrust.common.privacy.guarantee import Guarantee
from distrust.common.privacy.ledger import Entry, PrivacyLedger
from distrust.common.run.config import RunConfig
from distrust.common.run.progress import LedgerClass
from distrust.server.learner.rounds import RoundRecord

SEEDED = "unsafe.noise_seed: the privacy noise can be computed by anybody who knows the seed"


def answered(mechanism: Mechanism, survivors: int) -> str:
    """What a released cohort promises with all who answered honest, and with a tenth of them telling their noise."""
    colluders = max(1, survivors // 10)
    trusted, betrayed = (_promise(mechanism.guarantee(survivors, bad)) for bad in (0, colluders))
    return f"{trusted} with the {survivors} who answered, {betrayed} if {colluders} of them collude"


def _promise(guarantee: Guarantee) -> str:
    if guarantee.epsilon is None:
        return "no guarantee"
    return f"ε = {guarantee.epsilon:.3g}" + (f", δ = {guarantee.delta:.3g}" if guarantee.delta else "")


def spent(config: RunConfig, record: RoundRecord) -> Guarantee:
    """The guarantee of one round at its floor of honest survivors; none at all when its noise comes from a seed."""
    if config.unsafe is None:
        return record.guarantee if config.contributions == 1 else record.composable
    return record.guarantee.model_copy(
        update={"kind": "none", "epsilon": None, "delta": 0.0, "rdp": (), "assumptions": (SEEDED,)}
    )


def ledger(config: RunConfig, records: Sequence[RoundRecord]) -> PrivacyLedger:
    """All the rounds, aborted cohorts too: who was asked counts, whatever came of it."""
    entries = tuple(
        Entry(f"round {one.number}", one.clients, max(1, len(one.cohorts)), spent(config, one)) for one in records
    )
    return PrivacyLedger(config.contributions, config.budget, entries)


def classes(kept: PrivacyLedger) -> tuple[LedgerClass, ...]:
    """Clients by how often they took part, and what they have spent at most."""
    return tuple(LedgerClass(contributions=times, guarantee=one) for times, one in kept.classes.items())


def admit(config: RunConfig, records: Sequence[RoundRecord], planned: RoundRecord) -> None:
    """Refuse a round that the declared budget does not cover, before anybody is asked. Raises BudgetExceeded."""
    if config.budget is not None:
        ledger(config, records).spend(ledger(config, [planned]).entries[0])
