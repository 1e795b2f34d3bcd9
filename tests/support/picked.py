"""Picks the few of many similar things that one run of the suite plays, by the digest of the code's files.

So other code plays others, and the same code the same ones. CI plays all of them.
"""

import os
import random
from collections.abc import Sequence
from typing import TypeVar

from distrust.lab.sweep import code

T = TypeVar("T")
ALL = "DISTRUST_TEST_ALL"
"""Environment variable: if it is set, nothing is left out."""


def picked(offered: Sequence[T], few: int, what: str) -> list[T]:
    """Return `few` of what is offered, or all of it for CI, in its order. Picks of another `what` are independent."""
    if os.environ.get(ALL):
        return list(offered)
    places = random.Random(f"{code.files_digest()} {what}").sample(range(len(offered)), few)
    return [offered[place] for place in sorted(places)]
