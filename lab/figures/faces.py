"""Gives each algorithm one face, a colour and a marker, in all figures and under all its names.

Where a figure's question allows it, the colour tells who is trusted: blue the server, red no other party, green a
secure aggregator, purple a shuffler; black is no privacy.
"""

from typing import NamedTuple

BLUE, RED, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
BLACK, ORANGE, SKY = "#000000", "#E69F00", "#56B4E9"

COLOURS = (BLUE, RED, GREEN, PURPLE, BLACK, ORANGE, SKY)
"""Okabe and Ito's, told apart under every colour vision deficiency; yellow is left out, it fades on white."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


class Face(NamedTuple):
    """Look of one algorithm, whatever its variant is."""

    colour: str
    marker: str


PUBLIC, CENTRAL, LOCAL = Face(BLACK, "v"), Face(BLUE, "o"), Face(RED, "s")
AGGREGATED, SHUFFLED = Face(GREEN, "^"), Face(PURPLE, "D")
ORANGE_PLUS, SKY_CROSS = Face(ORANGE, "P"), Face(SKY, "X")

FACES: dict[str, Face] = {
    # MAB
    "SE without privacy": PUBLIC,
    "DP-SE": CENTRAL,
    "CDP-SE": Face(BLUE, "h"),
    "LDP-SE": LOCAL,
    "Dist-DP-SE": AGGREGATED,
    "Dist-RDP-SE": ORANGE_PLUS,
    "Dist-CDP-SE": SKY_CROSS,
    "Theorem 3": Face(ORANGE, "<"),
    "VB-SDP-AE": SHUFFLED,
    # DLB
    "DPE": PUBLIC,
    "DPE-FixedU": ORANGE_PLUS,
    "CDP-DPE": CENTRAL,
    "LDP-DPE": LOCAL,
    "SDP-DPE": SHUFFLED,
    "PE": PUBLIC,
    "CDP-PE": CENTRAL,
    "LDP-PE": LOCAL,
    "SDP-PE": SHUFFLED,
    # CTX, whose mechanisms have names of their own in ctx-bits
    "LinUCB": PUBLIC,
    "no privacy": PUBLIC,
    "LinUCB-JDP": CENTRAL,
    "central tree": CENTRAL,
    "LinUCB-JDP by factorization": SKY_CROSS,
    "LinUCB-SDP-Amp": ORANGE_PLUS,
    "sealed Gaussian": ORANGE_PLUS,
    "LinUCB-SDP-Vec": SHUFFLED,
    "labelled bits": SHUFFLED,
    "secure aggregation": AGGREGATED,
    "secure aggregation (discrete Gaussian)": AGGREGATED,
    "secure aggregation (Skellam)": Face(SKY, "<"),
    "LinUCB-LDP": LOCAL,
    "local Gaussian": LOCAL,
    # FREE, whose ablation is of Alg. 1
    "without privacy": PUBLIC,
    "core set without noise": PUBLIC,
    "Alg. 1 (central)": CENTRAL,
    "core set": CENTRAL,
    "no core set": ORANGE_PLUS,
    "Alg. 2 (local)": LOCAL,
    "Alg. 3 (shuffled)": SHUFFLED,
    # GLB, whose four are all local
    "LDP-OLS": Face(BLUE, "o"),
    "LDP-SGD": Face(RED, "s"),
    "LDP-UCB": Face(GREEN, "^"),
    "LDP-GLOC": Face(PURPLE, "D"),
    # the models of trust by name, as in the notebooks
    "central": CENTRAL,
    "local": LOCAL,
    "distributed": AGGREGATED,
    "shuffle": SHUFFLED,
}
"""The face of each algorithm, by the name that labels of series begin with."""


def faces(names: list[str]) -> dict[str, Face]:
    """Return a face for each name: its own, or for a name that is no algorithm the first that is left."""
    known = {name: FACES[name] for name in names if name in FACES}
    taken = {face.colour for face in known.values()}
    left = [Face(*pair) for pair in zip(COLOURS, MARKERS, strict=True) if pair[0] not in taken]
    left = left or [Face(*pair) for pair in zip(COLOURS, MARKERS, strict=True)]
    others = [name for name in names if name not in FACES]
    return known | {name: left[at % len(left)] for at, name in enumerate(others)}
