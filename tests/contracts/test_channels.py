"""Tests that every channel passes: what a client sends, what is mixed, what is read, what a transcript shows."""

import importlib
import json
import pkgutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2_contingency

from distrust.common.bandit.decisions import AssignedAction, AssignedArm
from distrust.common.errors import BadMessage
from distrust.common.protocol import channels
from distrust.common.protocol.channels import CHANNELS, CLASSES, channel_of
from distrust.common.protocol.channels.base import BatchReader, Channel, ChannelTerms, Content
from distrust.common.protocol.crypto.seal import open_record, seal
from distrust.common.protocol.intermediary.tables import METADATA, VERSION
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.storage.database import Database
from distrust.common.randomness import UnsafeSeededStream
from distrust.shuffler.service import Shuffler
from tests.support.cohorts import Authority, secret
from tests.support.manual_clock import ManualClock

TERMS: dict[str, dict[str, Any]] = {
    "masked": {"via": "aggregator"},
    "sealed": {},
    "dealt": {"decision": AssignedAction(actions=[4, 1], times=[2, 1])},
    "bits": {"width": 1},
}
"""By kind, in what the terms of a cohort that it carries differ from those of three clients at the shuffler."""

READ = {"bits"}
"""Kinds whose intermediary reads each client's message: their mechanisms trust it."""

SERVED = [kind for kind in TERMS if TERMS[kind].get("via") != "aggregator"]
NUMBERS = (700_100_200_301, 700_100_200_402, 700_100_200_504)
"""Three clients' first coordinates, before they are cut to what the channel carries; each next one is one larger."""


@dataclass(frozen=True)
class Sent:
    """Reports of three clients, slot 0 to 2, in a channel of one kind. The client of slot i plays position i."""

    kind: str

    @cached_property
    def server(self) -> Authority:
        return Authority()

    @cached_property
    def terms(self) -> ChannelTerms:
        facts = {"via": "shuffler", "modulus": 2**40, "dimension": 2, "width": None, "receipted": False}
        key = self.server.seals.public_key().public_bytes_raw()
        rest = {"decision": AssignedArm(), "graph": lambda: (2, 2), "server_key": key, "noise_seed": None}
        return ChannelTerms(**{**facts, **rest, **TERMS[self.kind]})

    @cached_property
    def cohort(self) -> Cohort:
        return self.server.cohort(channel_of(self.terms), clients=3)

    @property
    def channel(self) -> Channel:
        return self.cohort.channel

    @cached_property
    def rows(self) -> NDArray[np.uint64]:
        most = self.terms.modulus if self.terms.width is None else self.terms.width + 1
        return np.add.outer(NUMBERS, range(self.terms.dimension)).astype(np.uint64) % np.uint64(most)

    def places(self, positions: Sequence[int] = (0, 1, 2)) -> list[int | None]:
        decision = self.terms.decision
        return [decision.place(at) if isinstance(decision, AssignedAction) else None for at in positions]

    def reports(self, positions: Sequence[int] = (0, 1, 2)) -> list[tuple[int, bytes]]:
        return [
            (slot, self.channel.report(row, self.terms.modulus, sealer, secret(slot)))
            for slot, (row, place) in enumerate(zip(self.rows, self.places(positions), strict=True))
            for sealer in [partial(seal, self.channel.sealed_to, self.cohort, place=place)]
        ]

    def mixed(self, reports: Sequence[tuple[int, bytes]], seed: int = 0) -> Content:
        order = np.arange(3) if self.channel.assigns else None
        count, content = self.channel.mix(iter(reports), UnsafeSeededStream(seed), order)
        assert (count, type(content)) == (3, self.channel.CONTENT)
        return content

    @property
    def reader(self) -> BatchReader:
        opened = partial(open_record, self.server.seals, self.cohort)
        return BatchReader(self.terms.modulus, self.terms.dimension, opened)

    def sums(self, content: Content) -> list[tuple[int, list[int]]]:
        """Return the clients and the sum of each group that the server reads."""
        groups = self.channel.open(content, 3, self.reader)
        return [(group.clients, group.total(self.terms.modulus).tolist()) for group in groups]

    def expected(self, positions: Sequence[int] = (0, 1, 2)) -> list[tuple[int, list[int]]]:
        """Return what `sums` must be, by place of an action where the shuffler assigns them."""
        chosen = [[i for i, at in enumerate(self.places(positions)) if at in (place, None)] for place in (0, 1)]
        groups = chosen if self.channel.assigns else chosen[:1]
        m = np.uint64(self.terms.modulus)
        return [(len(group), (self.rows[group].sum(axis=0) % m).tolist()) for group in groups]


@pytest.fixture(params=TERMS)
def sent(request: pytest.FixtureRequest) -> Sent:
    return Sent(request.param)


def test_every_channel_in_the_folder_is_in_the_list_and_is_tested_here() -> None:
    for module in pkgutil.walk_packages(channels.__path__, channels.__name__ + "."):
        importlib.import_module(module.name)

    def below(kind: type[Channel]) -> set[type[Channel]]:
        return ({kind} if hasattr(kind, "CONTENT") else set()).union(*map(below, kind.__subclasses__()))

    assert below(Channel) == set(CLASSES)
    assert list(CHANNELS) == list(TERMS)


def test_a_channel_carries_the_cohorts_of_its_terms_and_travels_in_them(sent: Sent) -> None:
    assert type(sent.channel) is CHANNELS[sent.kind]
    assert sent.channel.via == sent.terms.via
    assert sent.channel.assigns == isinstance(sent.terms.decision, AssignedAction)
    sent.channel.check(3)
    assert Cohort.model_validate_json(sent.cohort.model_dump_json()) == sent.cohort


def test_a_report_has_the_size_that_is_stated_and_an_id_of_its_own(sent: Sent) -> None:
    reports = [report for _, report in sent.reports()]
    assert {len(report) for report in reports} == {sent.channel.report_size}
    ids = [sent.channel.report_id(report) for report in reports]
    assert set(ids) == {None} or len({*ids} - {None}) == 3


def test_what_the_server_opens_is_what_the_clients_sent(sent: Sent) -> None:
    reports = sent.reports()
    content = sent.mixed(reports)
    assert sent.sums(content) == sent.expected()
    ids = [own for _, report in reports if (own := sent.channel.report_id(report))]
    assert not any(own in content.body for own in ids)  # the shuffler and a client know whose they are


def test_a_batch_of_another_channel_or_of_more_clients_than_it_holds_is_refused(sent: Sent) -> None:
    content = sent.mixed(sent.reports())
    others = [Sent(kind) for kind in TERMS if kind != sent.kind]
    for foreign in [other.mixed(other.reports()) for other in others]:
        with pytest.raises(BadMessage, match=f"a batch of kind {foreign.kind} in a {sent.kind} channel"):
            sent.channel.open(foreign, 3, sent.reader)
    with pytest.raises(BadMessage):
        sent.channel.open(content.model_copy(update={"body": content.body + bytes(80)}), 3, sent.reader)


def test_mixing_tells_nothing_of_the_order_in_which_reports_came(sent: Sent) -> None:
    # 300 batches for each of the six orders. False alarm: 1e-6 for each channel, with fixed seeds.
    reports = sent.reports()
    counts = [
        Counter(sent.mixed(order, seed=1000 * number + draw).body for draw in range(300))
        for number, order in enumerate(permutations(reports))
    ]
    released = sorted(set().union(*counts))
    assert chi2_contingency([[count[body] for body in released] for count in counts]).pvalue > 1e-6


def test_a_transcript_of_the_intermediary_shows_no_number_of_a_client_unless_its_users_trust_it(sent: Sent) -> None:
    reports = sent.reports()
    shown = [sent.channel.report_view(report, 10) for _, report in reports]
    shown.append(sent.channel.batch_view(sent.mixed(reports), 3, 10))
    if sent.kind in READ:
        assert all(row in view.values() for view, row in zip(shown, sent.rows.tolist(), strict=False))
    else:
        assert not any(str(number) in json.dumps(shown) for number in sent.rows.ravel())


def test_the_servers_transcript_shows_what_it_opened_and_no_key_of_its_own(sent: Sent) -> None:
    view = sent.channel.opened_view(sent.mixed(sent.reports()), 3, sent.reader, 10)
    values = view["values"] if "values" in view else view.get("ones", view.get("sum"))
    assert isinstance(values, list)
    whole = sum(sum(total) for _, total in sent.expected())
    assert sum(map(int, values)) % sent.terms.modulus == whole % sent.terms.modulus
    opening = sent.channel.opening_view(10)
    assert opening["kind"] == sent.kind
    assert not sent.channel.HIDDEN & opening.keys()
    assert type(sent.channel).model_fields.keys() >= sent.channel.HIDDEN


def test_the_stages_of_its_cohorts_begin_with_their_opening_and_end_with_a_batch_and_an_estimate(sent: Sent) -> None:
    stages = [step.stage for step in sent.channel.STEPS]
    assert (stages[0], stages[-2:]) == ("cohort", ["batch", "estimate"])
    assert len(set(stages)) == len(stages)
    assert [step.stage for step in sent.channel.life("released").steps] == stages


@pytest.mark.parametrize("kind", SERVED)
def test_a_cohort_passes_the_shuffler_from_its_opening_to_its_batch(tmp_path: Path, kind: str) -> None:
    sent, database = Sent(kind), Database(f"sqlite:///{tmp_path}/s.sqlite3", METADATA, VERSION)
    cohort, service = sent.cohort, Shuffler(database, ManualClock())
    service.open(cohort)
    told = service.actions(cohort.address, sent.server.asking(cohort, range(3))).plays if sent.channel.assigns else None
    positions = told or (0, 1, 2)
    upload = sent.server.upload(cohort, "report", dict(sent.reports(positions)))
    assert service.receive(cohort.address, "report", upload).accepted == 3
    service.close()  # once the batch is computed
    answer = service.batch(cohort.address)
    assert isinstance(answer, bytes)
    batch = BatchAnswer.model_validate_json(answer).batch
    assert batch is not None
    assert sent.sums(batch.content) == sent.expected(positions)
    shown = service.transcript(cohort.address, 0, 100).model_dump_json()
    assert kind in READ or not any(str(number) in shown for number in sent.rows.ravel())
    database.close()
