"""The course in a real browser: JupyterLab, headless Chromium, keys only.

Needs playwright (`pip install -e ".[browser]"`) and a Chromium of the system (Debian: `apt install chromium`).
Screenshots go to `.work/screenshots`.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import course
from envace_lite import paths

pytestmark = pytest.mark.long
SETTINGS = {
    # Otherwise JupyterLab takes cells that are out of view off the page, and asks about news.
    "@jupyterlab/notebook-extension/tracker.jupyterlab-settings": '{"windowingMode": "none"}',
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": '{"fetchNews": "false"}',
}
SCREENSHOTS = paths.WORK / "screenshots"


@pytest.fixture
def network() -> Iterator[None]:
    """The browser and the server talk on this machine, which the other tests forbid."""
    import _socket

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", _socket.socket.connect)
        patch.setattr(socket.socket, "connect_ex", _socket.socket.connect_ex)
        yield


@pytest.fixture
def lab(tmp_path: Path, network: None) -> Iterator[str]:
    """A JupyterLab with a copy of the first notebook; its address."""
    notebook = course.named("00")
    root = tmp_path / "root"
    root.mkdir()
    shutil.copy(notebook, root / notebook.name)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"]
    command += ["--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True"]
    command += [f"--ServerApp.root_dir={root}", "--LabApp.news_url=", "--ServerApp.open_browser=False"]
    settings = tmp_path / "settings"
    for name, text in SETTINGS.items():
        (settings / name).parent.mkdir(parents=True, exist_ok=True)
        (settings / name).write_text(text, encoding="utf-8")
    server = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "JUPYTERLAB_SETTINGS_DIR": str(settings)},
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"{address}/api", timeout=2)
                break
            except OSError:
                time.sleep(0.5)
        yield f"{address}/lab/tree/{notebook.name}"
    finally:
        server.terminate()
        server.wait(30)


@pytest.fixture
def page(lab: str) -> Iterator[Any]:
    """The opened notebook."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if not chromium:
        pytest.skip("there is no chromium on this machine")
    flags = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with playwright.sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=chromium, args=flags)
        opened = browser.new_page(viewport={"width": 1200, "height": 1000})
        opened.goto(lab)
        opened.wait_for_selector(".jp-Notebook .jp-Cell", timeout=120_000)
        yield opened
        browser.close()


def focused(page: Any) -> str:
    return str(page.evaluate("document.activeElement.innerText || document.activeElement.type"))


def test_the_first_notebook_in_a_browser(page: Any) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    steps = page.locator(".jp-OutputArea", has_text="Step 1 of")
    steps.first.scroll_into_view_if_needed()
    found = re.search(r"Step 1 of (\d+)", steps.first.inner_text())
    assert found
    count = int(found[1])
    for place in range(1, count + 1):
        assert f"Step {place} of {count}" in steps.first.inner_text(), (
            "each step is readable before anything runs"
        )
    page.screenshot(path=str(SCREENSHOTS / "1_before_anything_runs.png"))

    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.wait_for_selector(".jupyter-widgets button:has-text('Next step')", timeout=120_000)
    deadline = time.monotonic() + 500
    while page.locator(".jp-InputPrompt", has_text="[*]").count() and time.monotonic() < deadline:
        time.sleep(1)
    assert not page.locator("[data-mime-type='application/vnd.jupyter.stderr']").count()

    live = page.locator(".jupyter-widgets.widget-vbox", has_text="Next step").first
    live.scroll_into_view_if_needed()
    assert f"Step 1 of {count}" in live.inner_text()
    page.screenshot(path=str(SCREENSHOTS / "2_live.png"))
    live.get_by_role("button", name="Previous step").focus()
    page.keyboard.press("Tab")
    assert focused(page) == "Next step"
    for place in (2, 3):
        page.keyboard.press("Enter")
        live.get_by_text(f"Step {place} of {count}").wait_for(timeout=20_000)
    page.keyboard.press("Tab")
    assert focused(page) == "checkbox"
    page.keyboard.press("Space")
    live.get_by_text("It is not the same").wait_for(timeout=20_000)
    assert live.locator("mark").count() >= 1
    page.screenshot(path=str(SCREENSHOTS / "3_the_real_response.png"))
    figure = page.locator(".jp-RenderedImage img").first
    figure.scroll_into_view_if_needed()
    page.screenshot(path=str(SCREENSHOTS / "4_figure.png"))
