"""Pieces of a reply without secrets: what is cut in two by pieces is found in what they make together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

__all__ = ["quiet_pieces", "quiet_values"]

Clean: TypeAlias = Callable[[Any], Any]


def quiet_values(pieces: Sequence[Any], clean: Clean) -> list[Any]:
    """A tool's pieces with nothing in them that `clean` takes out."""
    made = list(pieces)
    places = [n for n, piece in enumerate(made) if isinstance(piece, str)]
    for n, text in zip(places, _quiet_texts([made[n] for n in places], clean), strict=True):
        made[n] = text
    return [piece if isinstance(piece, str) else clean(piece) for piece in made]


def quiet_pieces(pieces: Sequence[Any], clean: Clean) -> list[Any]:
    """A model's pieces with nothing in them that `clean` takes out; where something is, the first one says all of it."""
    made: list[dict[str, Any]] = [{"text": piece} if isinstance(piece, str) else dict(piece) for piece in pieces]
    for name in ("text", "thinking"):
        having = [piece for piece in made if piece.get(name)]
        for piece, text in zip(having, _quiet_texts([piece[name] for piece in having], clean), strict=True):
            piece[name] = text
    calls: dict[int, list[dict[str, Any]]] = {}
    for piece in made:
        if "blocks" in piece:
            piece["blocks"] = clean(piece["blocks"])
        for delta in cast("list[dict[str, Any]]", piece.get("tool_uses", [])):
            calls.setdefault(delta["index"], []).append(delta)
    for deltas in calls.values():
        texts = _quiet_texts([delta.get("arguments", "") for delta in deltas], clean)
        for delta, text in zip(deltas, texts, strict=True):
            delta["arguments"] = text
    return [piece["text"] if isinstance(was, str) else piece for was, piece in zip(pieces, made, strict=True)]


def _quiet_texts(texts: list[str], clean: Clean) -> list[str]:
    whole = "".join(texts)
    said = str(clean(whole))
    return texts if said == whole else [said, *([""] * (len(texts) - 1))]
