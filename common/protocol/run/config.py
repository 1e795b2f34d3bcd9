"""Defines a run's configuration, from operator to server. It is immutable; its hash is in every seal and derivation."""

import hashlib
import json
import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from distrust.common.dp.accounting.guarantee import BudgetSpec
from distrust.common.dp.mechanisms import MECHANISMS, MechanismSpec
from distrust.common.protocol.messages.cohort import KEEP_SECONDS, KeepSeconds
from distrust.common.specs.base import RoundSize
from distrust.common.specs.policy import AnyPolicySpec, SuccessiveEliminationSpec
from distrust.common.wire import Identifier, Message

YOUNGER = ("budget", "returning")
"""Tables that older runs did not have. Absent ones are left out of the digest, so that old digests stay valid."""

YOUNGER_IN_POLICY = ("base", "constants")
"""Numbers in a policy's table that older runs did not have, left out of the digest likewise."""


class IntermediarySpec(Message):
    """Losses and corruption that an intermediary must survive, how long it waits, and how long it keeps messages.

    keep_seconds  0: at once. A configuration with the default has the digest of one that does not name it.
    """

    dropout: Annotated[float, Field(ge=0, lt=0.5, description="clients that may vanish, as a share of a cohort")] = 0.1
    corrupt: Annotated[float, Field(ge=0, lt=0.5, description="clients that may collude with the intermediary")] = 0.1
    minimum: Annotated[int, Field(ge=1, description="smallest cohort that may ever be released")] = 2
    stage_seconds: Annotated[float, Field(gt=0, le=86_400, description="time that a stage waits for clients")] = 120.0
    keep_seconds: KeepSeconds = KEEP_SECONDS

    def min_survivors(self, clients: int) -> int:
        """Return the fewest clients of a cohort that may answer: n - ⌊d·n⌋, and never below `minimum`."""
        return max(clients - math.floor(self.dropout * clients), self.minimum)

    def min_honest(self, clients: int) -> int:
        """Return t, the honest survivors that the noise is calibrated to: `min_survivors` - ⌊c·n⌋, at least 1."""
        return max(1, self.min_survivors(clients) - math.floor(self.corrupt * clients))


class ReturningSpec(Message):
    """`[returning]`: clients that come again. Without it every client takes part in one cohort."""

    contributions: Annotated[int, Field(ge=1, le=1000, description="R: cohorts that one identity may take part in")]


class UnsafeSpec(Message):
    """Switches that remove the privacy; a run that has them says so wherever its guarantee is printed."""

    noise_seed: Annotated[int, Field(ge=0, lt=2**63, description="noise from a seed: repeatable, not private")]


class RunConfig(Message):
    """It holds all that the server needs, and no part of the environment: true means never leave the clients' side.

    policy        the table `[policy]` of a run file.
    mechanism     the table `[mechanism]`.
    intermediary  the table `[intermediary]`.
    unsafe        the table `[unsafe]`.
    budget        the table `[budget]`.
    returning     the table `[returning]`.
    """

    version: Literal[1] = 1
    run: Identifier
    arms: Annotated[int, Field(ge=2, le=100_000, description="K")]
    horizon: Annotated[int, Field(ge=2, le=10**9, description="T: pulls in all, most often one a client")]
    policy: AnyPolicySpec = SuccessiveEliminationSpec()
    mechanism: MechanismSpec
    intermediary: IntermediarySpec = IntermediarySpec()
    unsafe: UnsafeSpec | None = None
    budget: BudgetSpec | None = None
    returning: ReturningSpec | None = None

    @model_validator(mode="after")
    def _horizon_serves_every_arm(self) -> Self:
        if self.policy.EVERY_ARM and self.horizon < self.arms:
            raise ValueError(f"horizon = {self.horizon}: must be at least arms = {self.arms}, one client an arm")
        return self

    def canonical(self) -> bytes:
        """Return the configuration as canonical JSON.

        Sorted keys, no spaces; younger tables only where they are given.
        """
        whole = self.model_dump(mode="json")
        kept = {key: value for key, value in whole.items() if value is not None or key not in YOUNGER}
        policy = kept["policy"].items()
        kept["policy"] = {key: value for key, value in policy if value is not None or key not in YOUNGER_IN_POLICY}
        return json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()

    @property
    def unproven(self) -> str | None:
        """Return what of this run no theorem of its policy covers, and what follows; None where theorems cover all.

        The run's result says it.
        """
        own = self.policy.unproven
        if not self.policy.GAUSSIAN or MECHANISMS[self.mechanism.name].gaussian:
            return own
        noise = f"{self.mechanism.name}: widths take the noise of every batch as Gaussian, which no theorem covers here"
        return noise if own is None else f"{own}; {noise}"

    @property
    def contributions(self) -> int:
        """Return R, 1 without `[returning]`."""
        return 1 if self.returning is None else self.returning.contributions

    def overflow_probability(self, number: int, active: int) -> float:
        """Return p' of round `number`: the probability with which its policy lets a sum wrap around.

        active  arms that are not dropped when the round is planned.
        """
        calibration = self.mechanism.calibration
        size = RoundSize(self.arms, self.horizon, calibration, number, active)
        return self.policy.event_probability(size)

    def digest(self) -> bytes:
        """Return SHA-256 of the canonical form, 32 bytes."""
        known = _digests.get(id(self))
        if known is not None and known[0] is self:  # the entry keeps its configuration alive: the id is not used again
            return known[1]
        if len(_digests) >= _KEPT:
            _digests.clear()
        digest = hashlib.sha256(self.canonical()).digest()
        _digests[id(self)] = self, digest
        return digest


_KEPT = 64  # digests of configurations in memory: every round and every cohort names one
_digests: dict[int, tuple[RunConfig, bytes]] = {}
