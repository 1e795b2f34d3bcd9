"""The values of the arms by which clients choose are the configuration's, not the server's word."""

from types import SimpleNamespace
from typing import Any

import pytest

from distrust.client.agreement import _check_policy
from distrust.common.bandit.contextual_choice import ContextualChoice
from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.errors import Refused
from distrust.common.messages.contextual_policy import LinUcbSpec

OWN = [0.0, 0.5, 1.0]


def _agree(own: list[float] | None, **received: Any) -> None:
    """Check a round of a run of 3 arms with these weights, whose decision carries `received`."""
    config = SimpleNamespace(policy=LinUcbSpec(name="linucb", features=2, batch=5, weights=own), arms=3)
    decision = ContextualChoice(theta=[[0.1, 0.2]], **received)
    round_ = SimpleNamespace(decision=decision, statistic=ContextualSum(features=2))
    _check_policy(config, round_, SimpleNamespace(arm=None))  # type: ignore[arg-type]  # only what is read


def test_the_weights_of_the_configuration_are_accepted() -> None:
    _agree(OWN, weights=OWN)
    _agree(None)


@pytest.mark.parametrize(
    ("own", "received", "words"),
    [
        pytest.param(
            OWN, {"weights": [0.0, 0.5, 0.9]}, r"decision\.weights = \[0\.0, 0\.5, 0\.9\]", id="another-value"
        ),
        pytest.param(OWN, {"weights": [0.0, 1.0]}, r"decision\.weights = \[0\.0, 1\.0\]", id="too-few"),
        pytest.param(OWN, {}, r"decision\.weights = None", id="left-out"),
        pytest.param(None, {"weights": OWN}, r"decision\.weights = \[0\.0, 0\.5, 1\.0\]", id="added"),
        pytest.param(OWN, {"weights": OWN, "link": "logistic"}, r"decision\.link = 'logistic'", id="another-link"),
        pytest.param(None, {"link": "poisson"}, r"decision\.link = 'poisson'", id="a-link-without-weights"),
    ],
)
def test_other_weights_are_refused(own: list[float] | None, received: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        _agree(own, **received)
