"""Tests of an aggregator that calls a client lost to some neighbours, and alive to others."""

import numpy as np
import pytest

from distrust.aggregator.recovery import sum_masked
from distrust.common.errors import BadShare, Refused
from distrust.common.modular import subtract
from distrust.common.protocol.crypto.context import masking, unmask_statement
from distrust.common.protocol.crypto.graph import Roster
from distrust.common.protocol.crypto.keys import binding, pair_from_seed
from distrust.common.protocol.crypto.mask import sum_masks
from distrust.common.protocol.crypto.share import SHARE_SIZE, combine
from distrust.lab.secagg_simulation import Simulation, enrol, make_cohort
from tests.support.mask_algebra import Story, opening

N, VICTIM = 24, 7
OTHERS = [slot for slot in range(N) if slot != VICTIM]


def played(n: int = N) -> Simulation:
    """Return a cohort whose clients have all sent a masked vector, the victim too."""
    simulation = enrol(make_cohort(n, 1009, 1))
    simulation.send_keys(range(n))
    simulation.send_shares(range(n))
    simulation.send_confirm(range(n))
    simulation.send_masked(range(n), np.arange(n, dtype=np.uint64).reshape(n, 1))
    return simulation


@pytest.fixture
def masked() -> Simulation:
    return played()


def tell(simulation: Simulation, slot: int, survivors: list[int]) -> bytes:
    """Return a client's answer if the server lies too: it publishes the statement that fits the client's story."""
    bitmap = simulation.bitmap(survivors)
    statement = unmask_statement(simulation.statements["masked"], simulation.cohort, bitmap)
    return simulation.clients[slot].unmask(bitmap, statement)


def share_of(simulation: Simulation, owner: int, slot: int, answer: bytes) -> bytes:
    at = SHARE_SIZE * simulation.roster.neighbours(slot).index(owner)
    return answer[at : at + SHARE_SIZE]


def test_a_client_that_is_told_another_story_than_the_server_published_says_nothing(masked: Simulation) -> None:
    """The server publishes one statement. Clients that were told another story refuse, the others answer."""
    published = unmask_statement(masked.statements["masked"], masked.cohort, masked.bitmap(range(N)))
    for slot in OTHERS:
        with pytest.raises(Refused, match="not what the server published for all"):
            masked.clients[slot].unmask(masked.bitmap(OTHERS), published)
        assert masked.clients[slot].unmask(masked.bitmap(range(N)), published)


@pytest.mark.parametrize("told_lost", [1, 11, 12, 22])
def test_no_lie_to_some_of_the_neighbours_opens_both_secrets_of_one_client(masked: Simulation, told_lost: int) -> None:
    """t = 12 of 23 neighbours: for any division one secret gets fewer than t shares, also without statements."""
    kinds: dict[str, list[tuple[int, bytes]]] = {"lost": [], "alive": []}
    for place, slot in enumerate(OTHERS):
        lie = place < told_lost
        answer = tell(masked, slot, OTHERS if lie else list(range(N)))
        kinds["lost" if lie else "alive"].append((place + 1, share_of(masked, VICTIM, slot, answer)))
    assert min(len(result) for result in kinds.values()) < 12
    few = min(kinds.values(), key=len)
    secrets = masked.clients[VICTIM]._secrets
    assert secrets is not None
    try:
        rebuilt = combine(tuple(point for point, _ in few), [share for _, share in few])
    except BadShare:
        return
    assert any(secrets.self_seed)
    assert rebuilt not in (secrets.self_seed, secrets.mask_seed)


def test_a_client_that_was_told_one_story_never_answers_to_the_other(masked: Simulation) -> None:
    for slot in OTHERS:
        tell(masked, slot, OTHERS)
        with pytest.raises(Refused):
            tell(masked, slot, list(range(N)))


def test_a_client_that_is_called_lost_to_its_face_says_nothing(masked: Simulation) -> None:
    with pytest.raises(Refused, match=f"lack slot {VICTIM}"):
        tell(masked, VICTIM, OTHERS)


def test_a_sum_over_few_is_not_opened_whichever_clients_are_called_lost(masked: Simulation) -> None:
    """21 clients are called survivors, although all 24 answered: below the minimum of 22."""
    for slot in OTHERS[:21]:
        with pytest.raises(Refused, match=r"21 survivors, and slot \d+ insists on 22"):
            tell(masked, slot, OTHERS[:21])


@pytest.mark.slow
def test_without_statements_any_client_is_opened_and_one_published_statement_prevents_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The opening that the oracle's integer program finds, at n = 150, k = 46, t = 24, played against real clients.

    The opening takes the self seed from t neighbours of the victim, and the mask key seeds of all its neighbours from
    other clients. Each of these is told another set of survivors. If the server lies too, with fitting statements, and
    clients make no checks of the graph, the aggregator reads the victim's value. If the server publishes one statement,
    most clients refuse.
    """
    n, victim = 150, 7
    simulation = played(n)
    roster, t = simulation.roster, masking(simulation.cohort).threshold
    graph = [roster.neighbours(slot) for slot in range(n)]
    stories = opening(graph, victim, t, n // 10)
    assert stories is not None
    published = unmask_statement(simulation.statements["masked"], simulation.cohort, simulation.bitmap(range(n)))
    refused = [slot for slot, story in stories.items() if not honest(simulation, slot, story, published)]
    assert len(refused) > n // 2
    monkeypatch.setattr(Roster, "fault", lambda *_: None)
    answers = {slot: tell(simulation, slot, sorted(story.survivors)) for slot, story in stories.items()}
    assert read_victim(simulation, stories, answers, victim) == victim


def honest(simulation: Simulation, slot: int, story: Story, published: bytes) -> bool:
    """Return True if the published statement fits a client's story. Assert that the client refuses otherwise.

    The client is asked only about other stories, because it answers the stage once.
    """
    bitmap = simulation.bitmap(sorted(story.survivors))
    if unmask_statement(simulation.statements["masked"], simulation.cohort, bitmap) == published:
        return True
    with pytest.raises(Refused, match="not what the server published for all"):
        simulation.clients[slot].unmask(bitmap, published)
    return False


def read_victim(simulation: Simulation, stories: dict[int, Story], answers: dict[int, bytes], victim: int) -> int:
    """Return the victim's value without its masks, which are computed from the shares alone."""
    roster, names, channel = simulation.roster, binding(simulation.cohort), masking(simulation.cohort)

    def seed(owner: int, *, alive: bool) -> bytes:
        near = roster.neighbours(owner)
        givers = [slot for slot in near if (owner in stories[slot].survivors) == alive][: channel.threshold]
        points = tuple(near.index(slot) + 1 for slot in givers)
        return combine(points, [share_of(simulation, owner, slot, answers[slot]) for slot in givers])

    plus, minus = [names.self_mask(seed(victim, alive=True), victim)], list[bytearray]()
    for w in roster.neighbours(victim):
        key = names.pair_mask(pair_from_seed(seed(w, alive=False)), roster.mask_key(victim), w, victim)
        (plus if w > victim else minus).append(key)
    m = channel.modulus
    masked_ = sum_masked(simulation.cohort, [simulation.masked[victim]])
    result = subtract(masked_, subtract(sum_masks(plus, m, 1), sum_masks(minus, m, 1), m), m)
    return int(result[0])
