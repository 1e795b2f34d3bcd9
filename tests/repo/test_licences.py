"""Tests that the bill of materials states the licence of every library."""

import json
import re
from typing import Any

import pytest

from tests.repo.licences import add_licences, licences
from tests.repo.structure import ROOT


def test_every_library_of_a_partys_image_has_the_licence_that_it_states_itself() -> None:
    # Late: these modules take a second and a half to load, in every process that collects the tests.
    from cyclonedx.schema import SchemaVersion  # noqa: PLC0415  as above
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415  as above

    pinned = re.findall(r"^(\S+)==(\S+)", (ROOT / "requirements-runtime.lock").read_text("utf-8"), re.MULTILINE)
    parts = [{"type": "library", "name": name, "version": version} for name, version in pinned]
    bill: dict[str, Any] = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": parts}
    add_licences(bill)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bill)) is None
    stated = {part["name"]: part["licenses"] for part in bill["components"]}
    assert len(stated) == len(pinned) > 40
    assert all(stated.values())
    assert stated["cryptography"] == [{"expression": "Apache-2.0 OR BSD-3-Clause"}]  # an expression
    assert stated["rich"] == [{"license": {"id": "MIT"}}]  # a name that SPDX has
    assert stated["scipy"] == [{"license": {"name": "BSD License"}}]  # a classifier, beside a text of pages


def test_a_library_of_another_version_or_none_has_no_licence_that_is_known() -> None:
    with pytest.raises(SystemExit, match=r"^rich .* is installed, and the bill has 1\.0$"):
        licences("rich", "1.0")
    with pytest.raises(SystemExit, match=r"^no-such-library is not installed"):
        licences("no-such-library", "1.0")
