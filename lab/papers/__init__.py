"""Errors of the papers, each with a counter-example that is computed when it is asked for."""

from collections.abc import Callable
from typing import get_args

from distrust.common.errors import BadParameter
from distrust.lab.papers import ctx, dlb, free, gaussian, mab
from distrust.lab.papers.erratum import Erratum, Paper

ERRATA: tuple[Callable[[], Erratum], ...] = (
    mab.theorem_1_dropouts,
    mab.theorem_1_tau,
    mab.theorem_2_noise,
    mab.theorem_2_last_term,
    mab.theorem_3,
    mab.theorem_4,
    mab.lemma_4,
    mab.theorem_6,
    mab.lemma_2,
    mab.footnote_3,
    gaussian.dlb_theorem_a1,
    dlb.theorem_a2_variance,
    dlb.algorithm_2_grid,
    dlb.lemma_c5_logarithm,
    dlb.lemma_c5_grid,
    dlb.delta_range,
    dlb.definitions,
    dlb.theorem_c4,
    ctx.algorithm_2,
    ctx.algorithm_5,
    ctx.theorem_b1_epsilon,
    ctx.theorem_b1_delta,
    ctx.theorem_b1_range,
    ctx.theorem_c1,
    ctx.theorem_e3,
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
