"""Tests that the last lines of a process's log are its own."""

from pathlib import Path

import pytest

from distrust.common.errors import Unavailable
from distrust.lab.stack.process import ServiceProcess


def test_last_words_are_those_of_this_process_and_not_of_an_earlier_one(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("listening, an hour ago\n")
    service = ServiceProcess("calendar", ["calendar", "13", "99"], {}, log)  # no such month
    assert service.process.wait(30) != 0
    with pytest.raises(Unavailable, match=r"the calendar ended with status") as caught:
        service.check()
    assert "an hour ago" not in caught.value.detail
    assert len(caught.value.detail.splitlines()) > 1
