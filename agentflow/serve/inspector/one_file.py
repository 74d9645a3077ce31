"""Export one run, or a comparison of two, as one HTML file that needs no server and loads nothing.

The page's modules are combined into one script, each in a function of its own. A hash in the content security policy allows
this script and no other.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from agentflow._support.shown import without_password
from agentflow.errors import StoreError, UsageError
from agentflow.recording.keeping import LogStore
from agentflow.serve.inspector.comparing import compare
from agentflow.serve.inspector.logs import Logs
from agentflow.serve.inspector.stored_runs import HOW_TO_GET_ONE, is_store, nothing_in
from agentflow.serve.web_chat import SHARED, policy

PAGE: Final = Path(__file__).parent / "page"
_MAX_NAMED: Final = 10
_IMPORT = re.compile(r'^import \{ (.+) \} from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function|class|const) (\w+)", re.MULTILINE)


def script_of(name: str) -> Path:
    """Return a file of the page, or one that pages share."""
    return PAGE / name if (PAGE / name).exists() else SHARED / name


def bundle() -> str:
    """Combine the page's modules into one script."""
    parts: dict[str, str] = {}

    def add(name: str) -> None:
        if name in parts:
            return
        source = script_of(f"{name}.js").read_text("utf-8")
        for found in _IMPORT.finditer(source):
            add(found[2])
        names = ", ".join(found[2] for found in _EXPORT.finditer(source))
        source = _IMPORT.sub(r"const { \1 } = _\2;", source)
        source = _EXPORT.sub(r"\1 \2", source)
        parts[name] = f"const _{name} = (() => {{\n{source}\nreturn {{ {names} }};\n}})();\n"

    add("app")
    return '"use strict";\n' + "".join(parts.values())


def page_with(runs: Sequence[tuple[str, bytes, int]]) -> str:
    """Return the page with runs in it.

    Args:
        runs: The name of each run, its validated lines, and the number of incomplete lines skipped; two runs are compared.

    Raises:
        StoreError: One of two runs to compare is not a run log.
    """
    logs = [{"name": name, "lines": lines.decode("utf-8", "replace"), "torn": torn} for name, lines, torn in runs]
    diff = compare(*[lines for _, lines, _ in runs]) if len(runs) == 2 else None
    script, style = bundle(), (PAGE / "page.css").read_text("utf-8")
    data = json.dumps({"runs": logs, "diff": diff}).replace("<", "\\u003c")  # so that no text ends the script
    rules = policy(_hash(script), _hash(style), "data:", "'none'")
    page = (PAGE / "index.html").read_text("utf-8")
    head, body = page.split("</head>")
    head = head.partition('    <link rel="icon"')[0].replace(
        '<meta charset="utf-8">',
        f'<meta charset="utf-8">\n    <meta http-equiv="Content-Security-Policy" content="{rules}">',
    )
    body = body.replace(
        "</body>",
        f'<script type="application/json" id="data">{data}</script>\n<script type="module">{script}</script>\n</body>',
    )
    return f"{head}    <style>{style}</style>\n  </head>{body}"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def export(path: str | Path, *runs: str | Path | LogStore) -> Path:
    """Write a run, or a comparison of two, as one HTML file.

    Args:
        path: The file to write; an existing file is replaced.
        runs: The run log, and optionally a second one to compare. A run in a store is named `"sqlite:///runs.db#run_1"`.

    Raises:
        UsageError: There is no run, or there are more than two.
        StoreError: A named run log is invalid or unreadable; in a folder, such a file is skipped.

    Example:
        >>> export("report.html", "runs/no-such-run.jsonl")
        Traceback (most recent call last):
        agentflow.errors.UsageError: There is no run log 'runs/no-such-run.jsonl'. ...
    """
    logs = [Logs([run]) for run in runs]
    for run, each in zip(runs, logs, strict=True):
        if each.problem:
            raise StoreError(each.problem)
        if isinstance(run, str) and is_store(run) and not each.runs():
            raise nothing_in(run)
    found = [(each, run) for each in logs for run in reversed(each.runs()) if not run.problem]
    if not 1 <= len(found) <= 2:
        named = without_password(", ".join(map(str, runs)))
        files = list(dict.fromkeys(run.file for _, run in found))
        advice = f"Choose one or two of {', '.join(files[:_MAX_NAMED])}."
        if len(files) < 2:  # no run, or a file with many
            advice = "Open the file with `agentflow inspect` and export one of its runs." if files else HOW_TO_GET_ONE
        raise UsageError(
            f"An export contains one run, or two to compare; {named or 'no argument'} has {len(found)}. {advice}"
        )
    sources = [(run.run, each.source(run.id)) for each, run in found]
    target = Path(path)
    contents = [(name, source.lines()[0], source.torn) for name, source in sources if source is not None]
    target.write_text(page_with(contents), "utf-8")
    return target
