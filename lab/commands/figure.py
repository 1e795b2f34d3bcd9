"""`distrust figure`: a figure of the papers, drawn from what is computed here, as PNG and SVG."""

from pathlib import Path
from typing import Annotated

import typer

from common.errors import BadParameter
from lab import composition
from lab.console import out
from lab.folder import writing

Name = Annotated[str, typer.Argument(metavar="NAME", help="composition: MAB Appendix I, what returning clients cost")]
Out = Annotated[Path, typer.Option("--out", help="Folder for NAME.png and NAME.svg")]
Epsilon = Annotated[float, typer.Option("--epsilon", help="Budget of a client for all its batches, in (0, 1)")]
Delta = Annotated[float, typer.Option("--delta", help="Its δ, in (0, 1/2)")]

FIGURES = ("composition",)


def figure(name: Name, out_: Out = Path(), epsilon: Epsilon = 0.5, delta: Delta = 1e-6) -> None:
    """Draw a figure of the papers."""
    if name not in FIGURES:
        raise BadParameter("figure", name, f"must be one of {', '.join(FIGURES)}")
    found = composition.curves(epsilon, delta)
    with writing(out_, "choose another --out"):
        out_.mkdir(parents=True, exist_ok=True)
        paths = composition.draw(found, out_ / name)
    for path in paths:
        out.print(path, markup=False, highlight=False)
