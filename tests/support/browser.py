"""Opens pages in a real Chromium, and checks what a page logs, which hosts it asks and how wide it is."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import ConsoleMessage, Page, Request, expect, sync_playwright

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 90_000
SIZES = {375: 800, 768: 1024, 1280: 900}
"""Widths and heights of a telephone, a tablet and a desk's screen."""


class Browser:
    """`with Browser() as browser: with browser.page(url) as page: …`. One process for all pages of a module."""

    def __enter__(self) -> Self:
        expect.set_options(timeout=PATIENCE_MS)
        result = shutil.which("chromium")
        assert result is not None, "make system-packages"
        with ExitStack() as undo:
            playwright = undo.enter_context(sync_playwright())
            self._chromium = playwright.chromium.launch(executable_path=result, args=ARGUMENTS)
            undo.callback(self._chromium.close)
            self._cleanup = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()

    @contextmanager
    def page(
        self,
        url: str,
        *,
        width: int = 1280,
        scheme: Literal["light", "dark"] = "light",
        others: Sequence[str] = (),
        refused: Sequence[int] = (),
        script: bool = True,
    ) -> Iterator[Page]:
        """Yield an address as a page. At the end it must have logged no error and asked no other host for anything.

        others   origins besides the address's own that the page may ask.
        refused  HTTP statuses that are expected: the browser logs an error for each such answer.
        """
        allowed = {origin(url), *others}
        size: Any = {"width": width, "height": SIZES.get(width, 900)}
        context = self._chromium.new_context(viewport=size, color_scheme=scheme, java_script_enabled=script)
        try:
            page = context.new_page()
            page.set_default_timeout(PATIENCE_MS)
            errors, asked = list[str](), list[str]()
            page.on("console", lambda message: errors.extend(_complaint(message, refused)))
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("request", lambda request: asked.append(_origin_of(request)))
            page.goto(url)
            yield page
            assert errors == []
            assert set(asked) <= allowed
        finally:
            context.close()


def origin(url: str) -> str:
    """Return scheme, host and port of an address."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def violations(page: Page) -> list[str]:
    """Return what axe-core finds against the rules of accessibility: rule, and the elements that break it."""
    result = Axe().run(page).response["violations"]
    return [f"{one['id']}: {[node['html'][:120] for node in one['nodes'][:3]]}" for one in result]


def overflow(page: Page) -> int:
    """Return by how many pixels the page is wider than its window."""
    wide: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return wide


def screenshot(page: Page, path: Path) -> None:
    """Write a picture of the whole page."""
    page.screenshot(path=path, full_page=True)


def _origin_of(request: Request) -> str:
    return origin(request.url)


def _complaint(message: ConsoleMessage, refused: Sequence[int]) -> list[str]:
    expected = any(f"status of {status}" in message.text for status in refused)
    return [message.text] if message.type == "error" and not expected else []
