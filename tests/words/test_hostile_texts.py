"""No text of a model, tool, server or provider holds the process, in whatever of ours looks through it."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from agentflow._support.shown import without_password
from agentflow.models.provider_errors import model_error
from agentflow.vocabulary.ports.answer_origin import AnswerOrigin

SECONDS = 40
"""Of processor time for all texts and functions together; a pattern that backtracks takes minutes, or years, for one."""


@pytest.mark.ci
def test_no_text_holds_the_process() -> None:
    """Texts of what each pattern begins with, again and again, and an end that does not fit."""
    program = Path(__file__).parent / "hostile_texts.py"
    ended = subprocess.run(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS)),
    )
    assert ended.stdout.split() == [
        "described",
        "model_error",
        "one_line",
        "redaction",
        "requested_wait",
        "shell",
        "without_password",
        "without_secrets",
    ]


def test_passwords_of_addresses_that_cannot_be_parsed() -> None:
    """Up to the last @ of the word, for each address in a word of its own."""
    text = "see 'db+x://ann:p@ss/w:o@host/a' and postgresql://bob:p@h, user: mysql://user:password@host:1 x@y://z:"
    assert without_password(text) == (
        "see 'db+x://ann:***@host/a' and postgresql://bob:***@h, user: mysql://user:password@host:1 x@y://z:"
    )


def test_an_error_that_is_nested_too_deeply() -> None:
    """It is shown as it came."""
    assert str(model_error(ValueError('{"error":' * 100_000 + "}"), "openai/gpt-5")).startswith("openai/gpt-5 ")


def test_a_long_id_of_an_answer() -> None:
    """The ids and model names of answers are kept for tracing up to 256 characters; longer ones are ignored."""
    origin = AnswerOrigin()
    origin.note("i" * 257, "m" * 257)
    assert (origin.response_id, origin.model) == ("", "")
    origin.note("i" * 256, "m" * 256)
    assert (origin.response_id, origin.model) == ("i" * 256, "m" * 256)
