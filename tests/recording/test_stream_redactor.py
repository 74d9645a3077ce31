"""Chunks without secrets: wherever a secret is split, the log does not have it, and has everything else."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from agentflow.plugins.redaction import Redaction
from agentflow.recording.recorder.stream_redactor import StreamRedactor

REDACTION = Redaction()
WORDS = ["hello ", "the ", "cat. ", "mail ada@example.com now ", "x", "password: hunter22 ", "y, "]


def text_of(piece: Any, name: str = "text") -> str:
    return piece if isinstance(piece, str) else piece.get(name, "")


@pytest.mark.parametrize("settles", [True, False], ids=["in pieces", "when it is whole"])
def test_a_text_is_written_without_its_secrets_wherever_it_is_cut(settles: bool) -> None:
    """By chunks, by flushes, by entries in between: the same as the whole text; chunks keep their numbers."""
    for seed in range(200):
        random = Random(seed)
        text = "".join(random.choice(WORDS) for _ in range(random.randint(1, 12)))
        cuts = sorted({0, len(text), *[random.randrange(len(text)) for _ in range(len(text) // 4)]})
        pieces = [text[begin:end] for begin, end in pairwise(cuts)]
        redactor = StreamRedactor(REDACTION.outside, REDACTION.finds if settles else None)
        written: list[dict[str, Any]] = []
        batch: dict[str, Any] | None = None
        interrupted = False

        def begun(number: int) -> dict[str, Any]:
            return {"kind": "chunks", "call": "c", "seq": number, "time": 0.0, "pieces": [], "at": []}

        for number, piece in enumerate(pieces):
            batch = batch or begun(number)
            batch["pieces"].append(random.choice([piece, {"text": piece}]))
            batch["at"].append(0.0)
            what = random.random()
            if what < 0.2:
                front = redactor.take_settled(batch)
                written.extend([] if front is None else [front])
                batch = batch if batch["pieces"] else None
            elif what < 0.3:
                redactor.close(batch, whole=False)
                written.append(batch)
                batch, interrupted = None, True
        batch = batch or {**begun(len(pieces)), "pieces": [{"finish_reason": "stop"}], "at": [0.0]}
        redactor.close(batch, whole=True)
        written.append(batch)

        said = [text_of(piece) for one in written for piece in one["pieces"]]
        assert "".join(said) == REDACTION.outside(text), seed
        numbers = [one["seq"] + n for one in written for n in range(len(one["pieces"]))]
        assert numbers == list(range(len(numbers)))
        if "".join(said) == text and not interrupted:
            assert [piece for piece in said if piece] == pieces


def test_a_flush_writes_all_but_what_may_become_a_secret() -> None:
    """So a killed process loses the last word, and not the whole reply."""
    redactor = StreamRedactor(REDACTION.outside, REDACTION.finds)
    pieces = [*[f"word{n} " for n in range(50)], "and ", "ada@exam"]
    batch = {
        "kind": "chunks",
        "call": "c",
        "seq": 7,
        "time": 10.0,
        "pieces": pieces,
        "at": [float(n) for n in range(52)],
    }
    front = redactor.take_settled(batch)
    assert front is not None
    assert (front["seq"], front["pieces"], front["at"]) == (7, pieces[:51], [float(n) for n in range(51)])
    assert batch == {"kind": "chunks", "call": "c", "seq": 58, "time": 10.051, "pieces": ["ada@exam"], "at": [0.0]}


def test_arguments_are_looked_through_when_the_call_is_whole() -> None:
    """Also a secret with JSON escapes is found; arguments without one stay in their chunks."""

    def deltas(*texts: str) -> dict[str, Any]:
        pieces = [{"tool_uses": [{"index": 0, "arguments": text}]} for text in texts]
        return {"kind": "chunks", "call": "c", "seq": 0, "time": 0.0, "pieces": pieces, "at": [0.0] * len(texts)}

    redactor = StreamRedactor(REDACTION.outside, REDACTION.finds)
    batch = deltas('{"to": "ada', "\\u0040example", '.com"}')
    assert redactor.take_settled(batch) is None
    redactor.close(batch, whole=True)
    assert [piece["tool_uses"][0].get("arguments", "") for piece in batch["pieces"]] == ["", "", '{"to": "<email>"}']
    clean = deltas('{"to": ', '"bob"}')
    redactor.close(clean, whole=True)
    assert clean == deltas('{"to": ', '"bob"}')
    first, last = deltas('{"to": "ada@exam'), deltas('ple.com"}')
    redactor.close(first, whole=False)
    redactor.close(last, whole=True)
    assert "arguments" not in first["pieces"][0]["tool_uses"][0]
    assert last["pieces"][0]["tool_uses"][0]["arguments"] == '{"to": "<email>"}'
