"""Errors of the papers, each with a counter-example that is computed when it is asked for."""

from collections.abc import Callable
from typing import get_args

from common.errors import BadParameter
from lab.errata import ctx_amp, ctx_vec, dlb, free, gaussian, mab_noise, mab_tails
from lab.errata.erratum import Erratum, Paper

ERRATA: tuple[Callable[[], Erratum], ...] = (
    mab_noise.theorem_1_dropouts,
    mab_tails.theorem_1_tau,
    mab_noise.theorem_2_noise,
    mab_noise.theorem_2_last_term,
    mab_noise.theorem_3,
    mab_tails.theorem_4,
    mab_tails.lemma_4,
    mab_tails.theorem_6,
    mab_tails.lemma_2,
    mab_noise.footnote_3,
    gaussian.dlb_theorem_a1,
    dlb.theorem_a2_variance,
    dlb.algorithm_2_grid,
    dlb.lemma_c5_logarithm,
    dlb.lemma_c5_grid,
    dlb.delta_range,
    dlb.definitions,
    dlb.theorem_c4,
    ctx_amp.algorithm_2,
    ctx_vec.algorithm_5,
    ctx_amp.theorem_b1_epsilon,
    ctx_amp.theorem_b1_delta,
    ctx_amp.theorem_b1_range,
    ctx_vec.theorem_c1,
    ctx_amp.theorem_e3,
    free.sensitivity,
    free.equation_10,
    free.closed_form,
    free.theorem_3,
    free.lemma_4,
    gaussian.glb_lemma_2_1,
    gaussian.glb_ols,
)


def errata(paper: str | None = None) -> list[Erratum]:
    """All of them, or one paper's, computed now. Raises BadParameter for a paper that is not among ours."""
    papers = get_args(Paper)
    if paper is not None and paper not in papers:
        raise BadParameter("paper", paper, f"must be one of {', '.join(papers)}")
    return [found for found in (compute() for compute in ERRATA) if paper in (None, found.paper)]
