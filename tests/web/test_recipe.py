"""The page of the recipe, word for word, in an empty folder: its file and the backend, under the command that it names."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from web_client import LIMIT, ROOT, SAMPLE, connected

if sys.platform == "win32":
    pytest.skip("needs signals", allow_module_level=True)

PAGE = (ROOT / "docs" / "cookbook" / "web.md").read_text("utf-8")


async def test_what_the_page_says_works(tmp_path: Path) -> None:
    """A question, a yes and the reply; the next process has the history. Requests and events are those of the page."""
    (tmp_path / "smallest.py").write_text(re.findall(r"^```py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0], "utf-8")
    shutil.copy(SAMPLE / "backend.py", tmp_path)
    bodies = re.findall(r"--json '(.*?)' http://127.0.0.1:8000(/[\w-]+)", PAGE)
    assert [path for _, path in bodies] == ["/chat", "/resume"]
    [arguments] = re.findall(r"^\$ uvicorn (.*) &$", PAGE, re.MULTILINE)
    command = [sys.executable, "-W", "error", "-m", "uvicorn", *arguments.split(), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    cookies = None
    for second in (False, True):
        process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
        assert process.stderr is not None
        try:
            async with asyncio.timeout(LIMIT):
                while b"running on" not in (line := await process.stderr.readline()):
                    assert line, "the server did not start"
            url = f"http://127.0.0.1:{int(line.split(b'127.0.0.1:')[1].split()[0])}"
            async with connected(url, cookies) as client:
                if second:
                    shown = [m.get("text", m.get("label")) for m in (await client.history())["messages"]]
                    assert shown == ["Write to Ann", "Sending the letter", "It is on its way."]
                    break
                cookies = client.http.cookie_jar
                seen = ""
                for body, path in bodies:
                    async with client.http.post(
                        url + path, data=body, headers={"Content-Type": "application/json"}
                    ) as response:
                        assert response.status == 200
                        seen += await response.text()
                for event in re.findall(r"^data: .*}$", PAGE, re.MULTILINE):
                    head, _, rest = event.partition("…, ")
                    assert head in seen
                    assert rest in seen
        finally:
            process.terminate()
            logged = (await process.communicate())[1].decode()
    assert "Traceback" not in logged
