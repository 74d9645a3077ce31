"""The pictures of the documentation are those that the code draws, in light and dark."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from agentflow.loop.states import TRANSITIONS, State
from website.pictures import PICTURES, path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_the_code_draws(name: str) -> None:
    """The file is up to date; `python -m website.pictures` draws all pictures again."""
    assert (FOLDER / f"{name}.svg").read_text("utf-8") == PICTURES[name]().svg()


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_can_be_read(name: str) -> None:
    """It has a title, colours for light and dark, and no text that is too small, outside, or over another text."""
    root = ElementTree.fromstring((FOLDER / f"{name}.svg").read_text("utf-8"))
    title, style = root.findtext(f"{SVG}title"), root.findtext(f"{SVG}style")
    assert title
    assert style
    assert "prefers-color-scheme:dark" in style
    wide, high = float(root.attrib["width"]), float(root.attrib["height"])
    placed: list[tuple[float, float, float, str]] = []
    for text in root.iter(f"{SVG}text"):
        size, x, y = (float(text.attrib[key]) for key in ("font-size", "x", "y"))
        assert size >= 11.5
        classes = text.attrib["class"].split()
        w = len(text.text or "") * size * (0.61 if "m" in classes else 0.58 if "b" in classes else 0.52)
        left = x - {"start": 0.0, "middle": w / 2, "end": w}[text.attrib["text-anchor"]]
        over = [said for a, b, at, said in placed if abs(at - y) < 11 and a < left + w and left < b]
        assert not over, f"{text.text!r} is written over {over}"
        placed.append((left, left + w, y, text.text or ""))
        assert left > 8, text.text
        assert left + w < wide - 8, text.text
        assert size < y < high - 8, text.text


def test_all_pictures_are_shown() -> None:
    """Each file in the folder is drawn by the code and shown on a page, with a text alternative."""
    assert {file.stem for file in FOLDER.iterdir()} == set(PICTURES)
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs").glob("*.md"))
    assert set(re.findall(r"!\[[^\]]{20,}\]\(pictures/(\w+)\.svg\)", pages)) == set(PICTURES)


def test_the_picture_of_the_states_has_every_fact_that_leads_somewhere() -> None:
    """It shows each state, and each fact that leads from one state to another."""
    said = " ".join(ElementTree.fromstring((FOLDER / "states.svg").read_text("utf-8")).itertext())
    for state, row in TRANSITIONS.items():
        moving = [kind.__name__ for kind, to in row.items() if not isinstance(to, State) or to is not state]
        assert [name for name in (state.name, *moving) if name not in said] == []


def test_the_path_of_an_event_is_six_functions_long() -> None:
    """The functions from the call to the hook are those that `docs/architecture.md` names."""
    steps = path.watched()
    above = next(step.above for step in steps if step.name == "your hook")
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert len(above) == 6
    assert [name for name in above if f"`{name}`" not in page] == []
    assert steps[-1].name == "your tool"
