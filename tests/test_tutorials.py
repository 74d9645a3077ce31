"""The tutorials that name a file and commands do what they print: their file, in an empty folder, under these commands."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

TUTORIALS = Path(__file__).parents[1] / "docs" / "tutorials"
LIMIT = 60


def unpack(page: str, file: Path) -> str:
    """Write the program of a tutorial into a file; return the page."""
    text = (TUTORIALS / page).read_text("utf-8")
    file.write_text(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0], "utf-8")
    return text


def test_a_crash_and_its_resume_print_what_the_page_shows(tmp_path: Path) -> None:
    """The second process resumes the call in which the first one died."""
    page = unpack("crash-and-resume.md", tmp_path / "orders.py")
    [shown] = re.findall(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    printed = ""
    for command in re.findall(r"^\$ python (.*)$", shown, re.MULTILINE):
        ran = subprocess.run(
            [sys.executable, *command.split()], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False
        )
        assert ran.stderr == ""
        printed += f"$ python {command}\n{ran.stdout}"
    assert printed == shown


@pytest.mark.skipif(sys.platform == "win32", reason="ends the server with SIGTERM")
async def test_the_page_streams_what_the_page_shows(tmp_path: Path) -> None:
    """The server of the tutorial sends the events that the page lists, for the same request."""
    page = unpack("streaming.md", tmp_path / "page.py")
    path, shown = re.findall(r"^\$ curl -N 'http://127.0.0.1:8000(.*?)'\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    command = [sys.executable, "-m", "uvicorn", "page:app", "--port", "0"]
    server = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stderr=subprocess.PIPE)
    assert server.stderr is not None
    try:
        async with asyncio.timeout(LIMIT):
            while b"running on" not in (line := await server.stderr.readline()):
                assert line, "the server did not start"
            url = f"http://127.0.0.1:{int(line.split(b'127.0.0.1:')[1].split()[0])}{path}"
            async with aiohttp.ClientSession() as client, client.get(url) as response:
                assert await response.text() == shown
    finally:
        server.terminate()
        await server.communicate()
