"""The site builds without a warning, loads nothing from the network, and has an entry for each public name."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from mkdocstrings import Inventory

from website.build import MODULES, title_of

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built by `mkdocs build --strict`: a page without a section, or a dead link, is an error."""
    place = tmp_path_factory.mktemp("site")
    # A proxy that does not exist, so that any access to the network fails.
    nobody = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)],
        cwd=ROOT,
        env={**os.environ, **nobody, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said = [line for line in (built.stdout + built.stderr).splitlines() if line and not line.startswith("INFO")]
    assert (built.returncode, said) == (0, [])
    return place


def inventory(site: Path) -> set[str]:
    """The objects that have an entry, without modules, which may have the name of a function in them."""
    with (site / "objects.inv").open("rb") as file:
        found = Inventory.parse_sphinx(file, domain_filter=("py",))
    return {name for name, item in found.items() if item.role != "module"}


class Loads(HTMLParser):
    """The URLs that a browser loads with a page."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag begins."""
        at = dict(attrs)
        wanted = at.get("href") if tag == "link" else at.get("src")
        if wanted and tag in {"link", "script", "img", "iframe", "source", "video", "audio"}:
            self.urls.append(wanted)


def test_nothing_is_loaded_from_outside(site: Path) -> None:
    """Pages, styles and scripts load no font, script or picture from another host, and each local one exists."""
    missing: list[str] = []
    for page in site.rglob("*.html"):
        loads = Loads()
        loads.feed(page.read_text("utf-8"))
        for url in loads.urls:
            place = site if page.name == "404.html" else page.parent  # that one is served at any address
            assert not re.match(r"\w+:|//", url), f"{page.name} loads {url}"
            if not (place / url.lstrip("/").partition("#")[0].partition("?")[0]).exists():
                missing.append(f"{page.name}: {url}")
    assert missing == []
    for style in [*site.rglob("*.css"), *site.rglob("*.svg")]:
        assert not re.search(r"url\(['\"]?https?:|@import|<image|<script", style.read_text("utf-8")), style


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_its_entry(site: Path, module: str) -> None:
    """Each name of a module's `__all__` is in the table of its page, with a description and a link to its entry."""
    page = (site / "api" / f"{title_of(module)}.html").read_text("utf-8")
    rows = dict(re.findall(r'<tr>\s*<td><a [^>]*href="([^"]+)"[^>]*><code>\w+</code></a></td>\s*<td>(.*?)</td>', page))
    listed = importlib.import_module(module).__all__
    led = {target.rpartition("#")[2]: said for target, said in rows.items()}
    assert [name.rpartition(".")[2] for name in led] == list(listed)
    assert set(led) <= inventory(site)
    assert [name for name, said in led.items() if not said.strip()] == []


def test_search_finds_pages_and_names(site: Path) -> None:
    """The search index is a file of the site with the pages and the entries of the reference."""
    script = (site / "search" / "search_index.js").read_text("utf-8")
    places = {entry["location"] for entry in json.loads(script.removeprefix("var __index = "))["docs"]}
    assert {"hooks.html", "api/vocabulary.events.html#agentflow.vocabulary.events.PreActing"} <= places
