"""Defines the `[policy]` tables of LinUCB on private sums and of SBLB, its relative for shuffled batches."""

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from distrust.common.bandit.contextual_sum import NoiseSource
from distrust.common.errors import BadParameter
from distrust.common.specs.contextual import BonusSpec

Switch = Annotated[float, Field(gt=0, le=1e6)]


class LinUcbSpec(BonusSpec):
    """LinUCB on private sums (CTX, Algorithm 1): λ and β follow from the noise of the mechanism.

    With `identity`: λ = 1 (Abbasi-Yadkori et al. 2011). With local noise and batch 1: LinUCB-LDP. With `tree`
    or `prefix-factorization`: LinUCB-JDP, or Batched-Central for a batch above 1. Through a shuffler: LinUCB-SDP.

    constants  absent: Lemma A.2's λ and β. published-code: those of the authors' code, which no theorem states.
               unsafe-published-code: its noise, too, which keeps less than the ε that is asked for; it goes with
               `local-gaussian` and the `paper` calibration.
    switch     C: clients keep a decision until V has grown by the factor 1 + C since it was formed; a decision a batch
               when absent.
    """

    POLICY: ClassVar[str] = "distrust.server.policies.contextual.linucb:LinUcb"

    name: Literal["linucb"]
    parameters: Literal["single"] = "single"
    link: Literal["identity"] = "identity"
    constants: Literal["published-code", "unsafe-published-code"] | None = Field(
        default=None, exclude_if=lambda constants: constants is None
    )
    switch: Switch | None = Field(default=None, exclude_if=lambda switch: switch is None)

    @property
    def unproven(self) -> str | None:
        more = super().unproven
        if self.constants is None:
            return more
        noise = "" if self.constants == "published-code" else ", and the guarantee is what their noise keeps"
        own = f'constants = "{self.constants}": no theorem states the widths of the authors\' code{noise}'
        return own if more is None else f"{own}; {more}"

    @property
    def noise_source(self) -> NoiseSource | None:
        return "CTX-code" if self.constants == "unsafe-published-code" else self.PRINTED

    @override
    def check_calibration(self, calibration: str) -> None:
        if self.constants == "unsafe-published-code" and calibration != "paper":
            raise BadParameter("policy.constants", self.constants, 'goes with mechanism.calibration = "paper"')


class SblbSpec(BonusSpec):
    """SBLB (Garcelon et al. 2022): LinUCB whose λ grows with the noise so far, and whose decisions change rarely.

    The paper's batches go through a shuffler: `shuffled-gaussian` and `shuffled-sphere` have a client's own noise, as
    the paper's clients have, and `shuffled-binomial` has noise bits. λ and β follow the variance of any mechanism's
    noise, which they take as Gaussian from the first batch on. So no theorem states them for heavier tails.

    switch       η: clients keep a decision until V has grown by the factor 1 + η since it was formed. 1/2 is the
                 paper's (Corollary 9).
    regularizer  λ, what is added to Σφφᵀ before any noise. 2√T when absent: the paper has √T (Corollary 9), and its V
                 the half of φφᵀ.
    """

    POLICY: ClassVar[str] = "distrust.server.policies.contextual.sblb:Sblb"

    name: Literal["sblb"]
    parameters: Literal["single"] = "single"
    link: Literal["identity"] = "identity"
    switch: Switch = 0.5
    regularizer: Annotated[float, Field(ge=1, le=1e9)] | None = None

    @property
    def unproven(self) -> str:
        own = "widths take the noise of every batch as Gaussian: no theorem covers mechanisms with heavier tails"
        more = super().unproven
        return own if more is None else f"{own}; {more}"

    def first_regularizer(self, horizon: int) -> float:
        """Return λ of a run of T = `horizon` clients."""
        return 2 * math.sqrt(horizon) if self.regularizer is None else self.regularizer
