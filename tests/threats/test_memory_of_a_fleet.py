"""Tests that a fleet's process holds no seed and no key of a cohort any more once its run is over."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from distrust.common.protocol.crypto.keys import pair_from_seed
from distrust.common.protocol.crypto.share import SEED
from distrust.common.protocol.run.config import RunConfig
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import NAMES, Stack
from tests.support.checkout import ROOT
from tests.support.forked import Process, forking
from tests.support.searched_memory import PIECE, KnownSource, found, pieces

COHORT = 32
MECHANISMS = {
    "sealed": {"name": "local-laplace-discrete", "epsilon": 2.0, "via": "shuffler"},
    "masked": {"name": "distributed-polya", "epsilon": 2.0, "via": "aggregator"},
}


def run_of(name: str) -> RunConfig:
    fields = {
        "run": name,
        "arms": 2,
        "horizon": 2 * COHORT,
        "policy": {"first_batch": 5},
        "mechanism": MECHANISMS[name],
        "intermediary": {"dropout": 0.2, "corrupt": 0.0, "minimum": 4},
    }
    return RunConfig.model_validate(fields)


@contextmanager
def played(stack: Stack, folder: Path, source: KnownSource) -> Iterator[int]:
    """Play a fleet on all runs, and yield the number of its process, which stands still after the last one."""
    log, done = folder / "fleet.log", folder / "done"
    addresses = {f"DISTRUST_{party.upper()}_URL": getattr(stack.urls, party) for party in NAMES}
    variables = {
        "PYTHONPATH": str(ROOT),
        "DISTRUST_PARTICIPATION_TOKEN_FILE": str(stack.data_dir.fleet_file),
        "DISTRUST_MEMORY_FILE": str(folder / "memory"),
        "DISTRUST_ENVIRONMENT": '{"name":"bernoulli","means":[0.2,0.8],"seed":4}',
        "DISTRUST_DROPOUT": "0.1",
        "DISTRUST_BLOCK": str(COHORT),
        "DISTRUST_MIN_SURVIVORS": "1",
    }
    words = ["tests.support.kept_fleet", str(source.path), str(done), *MECHANISMS]
    process = Process(words, {**addresses, **variables}, log)
    try:
        while not done.exists():
            assert process.poll() is None, log.read_text()
            time.sleep(0.02)
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_after_its_runs_a_fleets_memory_has_none_of_its_seeds_and_keys(tmp_path: Path) -> None:
    """Sealed and masked cohorts, with clients that leave at every stage.

    Looked for is each half of a seed, each quarter of a key of noise, and two of a private key of the masks.
    One secret more is kept on purpose, and found. 300 MB hold one of 1800 random pieces by chance with a probability of
    3e-8.
    """
    source = KnownSource(tmp_path / "random")
    with (
        forking(),
        Stack(DataDir(tmp_path / "data"), 0) as stack,
        httpx.Client(base_url=f"{stack.urls.server}/v1", trust_env=False) as operator,
    ):
        operator.headers["Authorization"] = f"Bearer {stack.urls.token}"
        for name in MECHANISMS:
            assert operator.post("/runs", json=json.loads(run_of(name).canonical())).status_code == 201
        with played(stack, tmp_path, source) as pid:
            views = [operator.get(f"/runs/{name}").json() for name in MECHANISMS]
            drawn = source.drawn()
            kept, secret = pieces(drawn[:SEED]), pieces(drawn[SEED:])
            seeds = [drawn[at : at + SEED] for at in range(SEED, len(drawn), SEED)]
            keys = (pair_from_seed(seed).private_bytes_raw() for seed in seeds)
            private = {piece for key in keys for piece in pieces(key[PIECE:-PIECE])}  # of the ends X25519 changes bits
            result = found(pid, kept | secret | private)
    assert [(view["state"], view["cohorts_released"]) for view in views] == [("finished", 2)] * 2
    assert len(seeds) >= 2 * COHORT * (2 + 2)  # two seeds a masked client, and of each run a key of its noise
    assert kept <= result
    assert len(result & secret) == 0
    assert len(result & private) == 0
