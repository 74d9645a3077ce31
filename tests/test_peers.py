"""The comparison with other frameworks: sides without dependencies run, and the pinned versions can be read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from benchmarks.peers.pinned import SIDES, named
from benchmarks.peers.race import Race, serving
from benchmarks.peers.table import GROUPS, behind, markdown, read

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parent.parent
ROWS = {row.key for rows in GROUPS.values() for row in rows}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(Path(sys.executable), None) as url:
        yield url


def measured(side: str, url: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.peers.runner", side, "--quick", "--wire", url]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.fixture(scope="module")
def ours(url: str) -> dict[str, Any]:
    return measured("ours", url)


@pytest.fixture(scope="module")
def bare(url: str) -> dict[str, Any]:
    return measured("bare", url)


def test_agentflow_does_the_work_of_all_rows(ours: dict[str, Any]) -> None:
    """Model calls, tool runs, hook calls and chunks are those that were asked for, in every row, over HTTP too."""
    assert ours["failed"] == {}
    assert ours["work"]["hooked round"] == {"model": 11, "tools": 10, "hooks": 21, "chunks": 0, "seen": 121}
    assert ours["work"]["wire chunk"]["chunks"] == 30


def test_the_loop_by_hand_does_the_same_work(ours: dict[str, Any], bare: dict[str, Any]) -> None:
    """It has no hooks, and says so; all else that both did is the same."""
    assert list(bare["failed"]) == ["hooks"]
    assert bare["work"] == {row: work for row, work in ours["work"].items() if row != "hooked round"}


def test_a_side_that_leaves_work_out_is_found_out(tmp_path: Path) -> None:
    """A side whose loop runs tools twice, or whose reader misses chunks, fails its rows; the others are measured."""
    code = (
        "import sys; from benchmarks.peers import runner, kit; from benchmarks.peers.sides import bare\n"
        "tool = bare.TOOLS['add'][0]\n"
        "async def twice(a, b): await kit.add(a, b); return await kit.add(a, b)\n"
        "bare.TOOLS['add'] = tool, twice\n"
        "sys.argv = ['runner', 'bare', '--quick']; runner.main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    failed = json.loads(ended.stdout)["failed"]
    assert list(failed) == ["first", "crowd", "calls", "streams", "hooks", "histories"]
    assert "tools=2" in failed["first"]


def test_what_takes_part_is_pinned() -> None:
    """Each side has a module, and its framework one exact version; the loop by hand and the two names are there."""
    assert [entry.name for entry in SIDES][:2] == ["bare", "agentflow"]
    assert len({entry.name for entry in SIDES}) == len(SIDES)
    for entry in SIDES:
        assert find_spec(f"benchmarks.peers.sides.{entry.module}") is not None
        if entry.name == "agentflow":
            continue
        first = Requirement(entry.requirements[0])
        assert first.name == entry.packages[0]
        assert [pin.operator for pin in first.specifier] == ["=="]


def test_the_tables_name_who_is_missing_and_where_agentflow_is_not_first(
    ours: dict[str, Any], bare: dict[str, Any]
) -> None:
    """A side that could not be installed is listed below the tables with the reason; a faster framework is listed."""
    found = Race([named("bare"), named("agentflow"), named("strands"), named("pygents")])
    figures = dict.fromkeys(ROWS, 2.0)
    found.add("bare", bare | {"figures": dict.fromkeys(ROWS, 0.5)})
    found.add("agentflow", ours | {"figures": figures})
    found.add("agentflow", ours | {"figures": figures})
    found.add("strands", ours | {"figures": dict.fromkeys(ROWS, 3.0) | {"call": 1.0}, "failed": {"wire": "no port"}})
    found.unavailable("pygents", "no wheel")
    report = found.as_json(2)
    text = markdown(report)
    assert "- pygents did not take part: no wheel" in text
    assert "- Strands (chunk over HTTP and 2 others): no port" in text
    assert [(row.key, first) for row, first in behind(report)] == [("call", "strands")]
    assert set(ours["figures"]) >= ROWS


def test_the_page_shows_the_figures_that_are_kept() -> None:
    """The tables are those of the stored figures, and a paragraph explains each line where another framework is first."""
    page = (ROOT / "docs" / "beside-others.md").read_text("utf-8")
    report = read()
    assert markdown(report) in page
    reasons = page.partition("## Where agentflow is not first")[2]
    assert {row.title.rpartition(",")[0] for row, _ in behind(report)} == set(re.findall(r"\*\*(.+?)\*\*", reasons))


def test_the_kept_figures_are_of_what_is_pinned() -> None:
    """If a pin changes, its side must be measured again."""
    sides = read()["sides"]
    assert {name: side["requirements"] for name, side in sides.items()} == {
        entry.name: list(entry.requirements) for entry in SIDES
    }
    assert all(0 < len(figures) <= read()["rounds"] for side in sides.values() for figures in side["figures"].values())
