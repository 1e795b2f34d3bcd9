"""Tests that a fleet is configured by variables or options, and names a bad one in one line."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from distrust.client.checks.requirements import PrivacyRequirements
from distrust.client.environments.arms import Bernoulli
from distrust.client.environments.mslr import Mslr
from distrust.client.fleet.settings import FleetSettings
from distrust.common.errors import BadParameter

BERNOULLI = '{"name":"bernoulli","means":[0.2,0.8],"seed":4}'


def _settings(**changes: Any) -> FleetSettings:
    return FleetSettings(**({"environment": BERNOULLI} | changes))


def test_variables_and_options_are_the_same_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTRUST_BLOCK", "64")
    monkeypatch.setenv("DISTRUST_SILENT", "true")
    monkeypatch.setenv("DISTRUST_ENVIRONMENT", BERNOULLI)
    arguments = ["--run", "demo", "--max-epsilon", "2", "--min-survivors", "30", "--allow-unsafe"]
    settings = FleetSettings(_cli_parse_args=arguments)
    assert (settings.run, settings.options().block, settings.options().silent) == ("demo", 64, True)
    assert settings.requirements() == PrivacyRequirements(max_epsilon=2.0, min_survivors=30, allow_unsafe=True)


def test_a_fleets_settings_are_shown_without_the_passwords_of_their_addresses() -> None:
    shown = repr(_settings(server_url="https://me:s3cret@server.example/"))
    assert "https://me:***@server.example/" in shown
    assert "s3cret" not in shown


def test_the_environment_may_be_json(monkeypatch: pytest.MonkeyPatch) -> None:
    world = _settings().world()
    assert isinstance(world.environment, Bernoulli)
    assert world.environment.means.tolist() == [0.2, 0.8]
    assert (world.seed, world.noise_seed) == (4, None)


def test_a_configuration_is_pinned_by_64_hex_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTRUST_ENVIRONMENT", BERNOULLI)
    assert FleetSettings(_cli_parse_args=[]).requirements().config_digest is None
    pinned = FleetSettings(_cli_parse_args=["--config-digest", "0f" * 32])
    assert pinned.requirements() == PrivacyRequirements(config_digest=bytes([15] * 32))
    for bad in ("", "0f", "0F" * 32, "0f" * 33, "zz" * 32):
        with pytest.raises(ValidationError, match="config_digest"):
            _settings(config_digest=bad)


@pytest.mark.parametrize("text", ['[environment]\nname = "mslr"\nseed = 5\n', 'name = "mslr"\nseed = 5\n'])
def test_the_environment_may_be_a_run_file_or_a_table_of_its_own(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    world = _settings(environment=str(path)).world()
    assert isinstance(world.environment, Mslr)
    assert world.seed == 5


def test_a_seed_may_come_beside_the_table_and_never_replaces_its_own() -> None:
    assert _settings(environment='{"name":"mslr"}', seed=8).world().seed == 8
    assert _settings(seed=8).world().seed == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"environment": '{"name":"mslr"}'}, r"environment\.seed", id="no-seed"),
        pytest.param({"environment": '{"name":"mslr","seed":null}'}, r"environment\.seed", id="null-seed"),
        pytest.param({"environment": "{broken"}, "neither JSON nor", id="broken-json"),
        pytest.param({"environment": "/nowhere/run.toml"}, "cannot be read", id="missing-file"),
        pytest.param({"environment": '{"environment":3}'}, "must be a table", id="not-a-table"),
        pytest.param(
            {"environment": '{"name":"mslr","file":"/nowhere.csv","seed":1}'}, "distrust data mslr", id="no-data"
        ),
        pytest.param({"noise_seed": 1}, "needs --allow-unsafe", id="noise-seed-alone"),
    ],
)
def test_a_world_that_cannot_be_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        _settings(**changes).world()


@pytest.mark.parametrize(
    "changes",
    [
        {"dropout": 1.0},
        {"dropout": -0.1},
        {"block": 0},
        {"max_epsilon": 0},
        {"patience": 0},
        {"server_url": "server:1"},
    ],
)
def test_values_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        _settings(**changes)


def test_a_noise_seed_with_leave_reaches_the_world() -> None:
    assert _settings(noise_seed=7, allow_unsafe=True).world().noise_seed == 7


def test_limits_that_are_not_set_are_the_models_own_and_one_that_is_set_leaves_the_other() -> None:
    assert _settings().requirements() == PrivacyRequirements(min_survivors=None, max_delta=None)
    assert _settings(min_survivors=3).requirements() == PrivacyRequirements(min_survivors=3, max_delta=None)
    assert _settings(max_delta=0.5).requirements() == PrivacyRequirements(min_survivors=None, max_delta=0.5)
    for bad in ({"min_survivors": 0}, {"min_survivors": 2.5}, {"max_delta": -1e-9}, {"max_delta": 1.5}):
        with pytest.raises(ValidationError, match=next(iter(bad))):
            _settings(**bad)
