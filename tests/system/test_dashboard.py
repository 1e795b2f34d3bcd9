"""The dashboard in a real Chromium, over real services."""

from collections.abc import Iterator

import pytest

from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import Stack
from tests.support.browser import SIZES, Browser, overflow, violations

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(DataDir(tmp_path_factory.mktemp("dashboard")), 0) as running:
        yield running


def test_the_list_is_accessible_and_fits_every_screen(browser: Browser, stack: Stack) -> None:
    for width in SIZES:
        for scheme in ("light", "dark"):
            with browser.page(stack.urls.server, width=width, scheme=scheme) as page:
                assert violations(page) == []
                assert overflow(page) <= 0
