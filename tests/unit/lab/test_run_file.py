"""Tests that run files are read, divided between server and clients, and refused by field and value."""

import os
from pathlib import Path

import pytest

from distrust.common.errors import ProtocolError
from distrust.lab.play.run_file import BadRunFile, parse, read

GOOD = """
run = "trial"
horizon = 1000
[mechanism]
name = "distributed-polya"
epsilon = 1.0
[environment]
name = "bernoulli"
seed = 4
means = [0.1, 0.9]
"""

BAD = {
    "misspelt-key": ("horizon = 1000", "horizn = 1000", r"horizn = 1000: unknown key, did you mean horizon"),
    "misspelt-in-table": ("epsilon", "epsilo", r"mechanism.epsilo = 1.0: unknown key, did you mean epsilon"),
    "misspelt-environment": ("means", "meens", r"environment.meens .*unknown key, did you mean means"),
    "mean-above-one": ("0.9]", "1.9]", r"environment.means\[1\] = 1.9: must lie in \[0, 1\]"),
    "mean-nan": ("0.9]", "nan]", r"environment.means"),
    "one-arm": ("[0.1, 0.9]", "[0.4]", r"environment.means = \[0.4\]: at least 2 arms"),
    "horizon-below-arms": ("horizon = 1000", "horizon = 1", r"horizon = 1: must be at least 2"),
    "arms-disagree": ("horizon = 1000", "horizon = 1000\narms = 3", r"arms = 3: the environment has 2"),
    "horizon-a-date": ("horizon = 1000", "horizon = 2020-01-01", r"horizon = .*must be a whole number"),
    "no-such-world": ('"bernoulli"', '"roulette"', r"environment.name = 'roulette': must be one of bernoulli"),
    "no-such-mechanism": ('"distributed-polya"', '"magic"', r"mechanism.name = 'magic': must be 'identity'"),
    "run-name": ('run = "trial"', 'run = "Tri al"', r"run = 'Tri al': must match"),
    "no-fleet": ("[environment]", "[fleet]\nprocesses = 0\n[environment]", r"fleet.processes = 0: must be at least 1"),
    "misspelt-table": ("[environment]", "[enviroment]", r"enviroment: unknown key, did you mean environment.* fleet"),
    "no-environment": ("[environment]", "[intermediary]", r"environment: is required"),
    "no-mechanism": ('[mechanism]\nname = "distributed-polya"\nepsilon = 1.0', "", r"mechanism: is required"),
    "endless-number": ("horizon = 1000", "horizon = " + 5000 * "9", r"not TOML: Exceeds the limit"),
    "endless-nesting": ("horizon = 1000", "horizon = " + 5000 * "[", r"not TOML"),
    "nothing": (GOOD, "", r"environment: is required"),
    "not-toml": ("horizon = 1000", "horizon 1000", r"not TOML"),
}


@pytest.mark.parametrize(("old", "new", "says"), BAD.values(), ids=BAD)
def test_a_bad_run_file_is_refused_in_one_line_with_field_value_and_what_is_allowed(
    old: str, new: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(GOOD.replace(old, new, 1), "utf-8")
    with pytest.raises(BadRunFile, match=says) as caught:
        read(path)
    assert "\n" not in caught.value.detail
    assert caught.value.detail.startswith(f"{path}: ")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRunFile, match=r"none.toml: No such file"):
        read(tmp_path / "none.toml")


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "marked.toml").write_text(GOOD, "utf-8-sig")
    assert read(tmp_path / "marked.toml").config == parse(GOOD).config


def test_arms_come_from_the_environment() -> None:
    assert parse(GOOD).config.arms == 2
    assert parse("arms = 2\n" + GOOD).config == parse(GOOD).config


def test_nothing_of_the_environment_is_in_the_servers_part() -> None:
    one, other = (
        parse(GOOD),
        parse(GOOD.replace("[0.1, 0.9]", "[0.123, 0.456]").replace("seed = 4", "seed = 77")),
    )
    assert one.environment != other.environment
    assert one.config.canonical() == other.config.canonical()
    sent = one.config.canonical().decode()
    assert not any(word in sent for word in ("environment", "means", "bernoulli", 'seed":4', "0.9", "fleet"))


def test_a_world_without_a_seed_gets_one_that_stays() -> None:
    file = parse(GOOD.replace("seed = 4\n", ""))
    assert file.environment.seed is not None
    assert file.renamed("other").environment == file.environment
    assert file.renamed("other").config.run == "other"


@pytest.mark.parametrize("name", ["Bad Name", "", "x" * 57])
def test_another_name_must_be_one_that_a_run_can_have(name: str) -> None:
    with pytest.raises(ProtocolError, match=r"^run = "):
        parse(GOOD).renamed(name)


def test_bad_parameters_of_a_world_are_ours_too() -> None:
    with pytest.raises(ProtocolError, match=r"environment\.seed"):
        parse(GOOD.replace('name = "bernoulli"\nseed = 4\nmeans = [0.1, 0.9]', 'name = "gaussian-easy"\nseed = "x"'))


def test_a_run_file_is_a_file_of_some_megabytes_at_most(tmp_path: Path) -> None:
    """A pipe without a writer would keep the reader waiting, and a device has no end."""
    os.mkfifo(tmp_path / "pipe.toml")
    with (tmp_path / "long.toml").open("wb") as made:
        made.truncate(2**40)
    for path, why in (
        ("/dev/zero", "must be a file, and is a pipe or a device"),
        (tmp_path / "pipe.toml", "must be a file, and is a pipe or a device"),
        (tmp_path / "long.toml", "has more than 16,777,216 bytes"),
        (tmp_path, "Is a directory"),
        (tmp_path / "none.toml", "No such file or directory"),
    ):
        with pytest.raises(BadRunFile, match=f"^{path}: {why}$"):
            read(path)
