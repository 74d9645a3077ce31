"""Texts that hold a pattern which backtracks, and the functions of the package that look through texts of others.

Run as a program, under a limit of processor time that the test sets; it prints the names of the functions that have ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from agentflow import ToolUseBlock
from agentflow._support.shown import described, one_line, without_password, without_secrets
from agentflow.models.provider_errors import model_error
from agentflow.models.waits import requested_wait
from agentflow.plugins import ShellApproval
from agentflow.plugins.redaction.detectors import DETECTORS
from agentflow.plugins.redaction.text import Scanner

LENGTH = 60_000 if os.environ.get("CI") else 20_000
SHORTER = {"redaction": 5_000, "shell": 4_000}
"""Where linear time is long too."""
REPEATED = (
    *(
        "a",
        " ",
        "\n",
        "a-",
        "a.",
        "<",
        "<html",
        "wait",
        "wait ",
        "a://b:",
        "http://a:",
        "postgresql://a:b@",
        "@",
        "a@",
        "=",
    ),
    *(
        "Error: ",
        "pwd='",
        "password ",
        "Bearer ",
        "{",
        "[",
        '"',
        "\\",
        "'",
        "1",
        "-",
        "x:<",
        "x:<a.",
        "QUJD",
        "eyJ",
        "sk-",
    ),
    *("$(", "`", "|", "&", ";", "echo ", "-----BEGIN ", " Handle with", "retryDelay ", '{"error":'),
)
ENDS = ("", "://", "!")

guard = ShellApproval(allow=["git log **", "echo *a*"], deny=["rm *", "git push **"])
scanner = Scanner(DETECTORS)


def judge(text: str) -> None:
    use = ToolUseBlock("t1", "bash", {"command": text})
    guard.refused(use)
    guard.allowed(use)


FUNCTIONS: dict[str, Callable[[str], object]] = {
    "described": lambda text: described(ValueError(text)),
    "model_error": lambda text: model_error(ValueError(text), "openai/gpt-5"),
    "one_line": one_line,
    "redaction": lambda text: scanner.replace(text, lambda kind, found: kind),
    "requested_wait": lambda text: requested_wait({}, text),
    "shell": judge,
    "without_password": without_password,
    "without_secrets": lambda text: without_secrets(text, ["12345678"]),
}

if __name__ == "__main__":
    for name, function in FUNCTIONS.items():
        for repeated in REPEATED:
            for end in ENDS:
                length = SHORTER.get(name, LENGTH)
                function((repeated * (length // len(repeated) + 1))[:length] + end)
        print(name)
