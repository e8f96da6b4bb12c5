"""A real Chromium that opens local files, for tests of what pages look like."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SCREENS = {"desktop": (1280, 900), "phone": (360, 740)}


def chromium() -> str:
    """Return the path of a Chromium; without one the test is skipped, or fails where CI runs."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := os.environ.get("SADIH_CHROMIUM") or shutil.which(name):
            return path
    reason = "no Chromium on this machine: apt-get install chromium, or set SADIH_CHROMIUM to one"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def launched(home: Path) -> Iterator[Any]:
    """Start a browser with a profile of its own."""
    executable = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=executable, args=list(FLAGS), env=os.environ | {"HOME": str(home)}
        )
        yield found
        found.close()


class Visit:
    """One page on one screen; everything that it logs and asks for is kept."""

    def __init__(self, browser: Any, path: Path, screen: str, scheme: str, **settings: Any) -> None:
        width, height = SCREENS[screen]
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, **settings
        )
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


def luminance(colour: str) -> float:
    """Return how bright a computed colour is, 0 to 255."""
    red, green, blue = (float(c) for c in colour[colour.index("(") + 1 : -1].split(",")[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
