"""Pieces of a reply or of a tool's output without secrets: one that pieces cut in two is found in what they make together.

Rules:

1. What is written is settled: nothing that follows could make it, or its end, a part of a secret.
2. Where nothing is found, pieces are written as they were. Where something is, the first piece of its batch says all of it.
3. Where a batch has to end in the midst of a text, because something else happens, what is not settled moves on to the next
   batch of the same stream.
4. The arguments of a call are settled when the call is whole: a secret may be written with JSON's escapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, cast

from agentflow.messages import ToolUseBlock

__all__ = ["Find", "Finds", "Quiet"]

Find: TypeAlias = tuple[int, int, str]
"""Where it begins in a text, where it ends, and what stands for it."""
Finds: TypeAlias = Callable[[str, int, bool], tuple[list[Find], int]]
"""Given a text, where to begin, and whether it is whole: what is in it that is not told, and up to where that is certain."""
Batch: TypeAlias = dict[str, Any]

_CONTEXT = 200
"""Characters before a text that are looked back on."""


class _Channel:
    """A text that comes in pieces."""

    __slots__ = ("before", "held")

    def __init__(self) -> None:
        self.before = ""  # the end of what was written
        self.held = ""  # what was moved on

    def look(self, finds: Finds, raw: str, whole: bool) -> tuple[list[Find], int]:
        """What is in a text that continues what was written."""
        start = len(self.before)
        found, reached = finds(self.before + raw, start, whole)
        return [(begin - start, end - start, said) for begin, end, said in found], reached - start

    def wrote(self, raw: str, upto: int) -> None:
        self.before, self.held = (self.before + raw[:upto])[-_CONTEXT:], raw[upto:]


class Quiet:
    """Takes secrets out of batches of pieces; one for each log.

    Args:
        clean: Takes them out of a value.
        finds: Says where they are in a text; None: a text is settled when it is whole.
    """

    def __init__(self, clean: Callable[[Any], Any], finds: Finds | None) -> None:
        self._clean = clean
        self._finds = finds or self._only_whole
        self._streams: dict[tuple[Any, ...], dict[str, _Channel]] = {}

    def _only_whole(self, text: str, start: int, whole: bool) -> tuple[list[Find], int]:
        if not whole:
            return [], start
        said = str(self._clean(text[start:]))
        return ([] if said == text[start:] else [(start, len(text), said)]), len(text)

    def begin(self, batch: Batch) -> None:
        """A batch begins; where its first piece makes those before it void, nothing of them moves on."""
        if batch.get("restart"):
            self._streams.pop(_key(batch), None)

    def forget(self, call: str) -> None:
        """A call is over."""
        for key in [key for key in self._streams if key[0] == call]:
            del self._streams[key]

    def settled(self, batch: Batch) -> Batch | None:
        """Cut off the pieces in front of an open batch that may be written; None: there are none."""
        pieces = cast("list[Any]", batch["pieces"])
        calls = [n for n, piece in enumerate(pieces) if batch["kind"] != "pieces" and _has_calls(piece)]
        most = calls[0] if calls else len(pieces)
        looked: list[tuple[str, str, list[Find], int, list[int]]] = []
        for name, channel in self._channels(batch).items():
            borders = [len(channel.held)]
            for piece in pieces:
                borders.append(borders[-1] + len(_text(batch, piece, name)))
            raw = channel.held + "".join([_text(batch, piece, name) for piece in pieces])
            looked.append((name, raw, *channel.look(self._finds, raw, whole=False), borders))

        def free(n: int) -> bool:
            return all(
                borders[n] <= reached and not any(begin < borders[n] < end for begin, end, _ in found)
                for _, _, found, reached, borders in looked
            )

        n = next((n for n in range(most, 0, -1) if free(n)), 0)
        if n == 0:
            return None
        front = {**batch, "pieces": pieces[:n], "at": batch["at"][:n]}
        for name, raw, found, _, borders in looked:
            self._write(front, name, raw, [one for one in found if one[1] <= borders[n]], borders[n])
            self._channels(batch)[name].held = ""
        self._rest(front)
        batch["pieces"] = pieces[n:]
        if batch["pieces"]:
            behind = batch["at"][n]
            batch["time"] += behind / 1000
            batch["at"] = [round(at - behind, 3) for at in batch["at"][n:]]
            if "seq" in batch:
                batch["seq"] += n
            batch.pop("restart", None)
        return front

    def close(self, batch: Batch, whole: bool) -> None:
        """Take secrets out of a batch that ends.

        Args:
            batch: The batch.
            whole: Whether its stream ends with it.
        """
        for name, channel in self._channels(batch).items():
            raw = channel.held + "".join([_text(batch, piece, name) for piece in batch["pieces"]])
            found, reached = channel.look(self._finds, raw, whole)
            self._write(batch, name, raw, found, reached)
        self._arguments(batch, whole)
        self._rest(batch)
        if whole:
            self._streams.pop(_key(batch), None)

    def _channels(self, batch: Batch) -> dict[str, _Channel]:
        names = ("text",) if batch["kind"] == "pieces" else ("text", "thinking")
        known = self._streams.setdefault(_key(batch), {name: _Channel() for name in names})
        return {name: known[name] for name in names}

    def _write(self, batch: Batch, name: str, raw: str, found: Sequence[Find], upto: int) -> None:
        """Put into the pieces what may be said of a text."""
        channel = self._channels(batch)[name]
        pieces, held = cast("list[Any]", batch["pieces"]), len(channel.held)
        channel.wrote(raw, upto)
        if not found and not held and upto == len(raw):
            return
        places = [n for n, piece in enumerate(pieces) if _text(batch, piece, name)] or [len(pieces) - 1]
        if found:
            _say(batch, places[0], name, _replaced(raw[:upto], found))
            for n in places[1:]:
                _say(batch, n, name, "")
            return
        begin = 0
        for place, n in enumerate(places):
            end = begin + len(_text(batch, pieces[n], name)) + (held if place == 0 else 0)
            _say(batch, n, name, raw[begin : min(end, upto)])
            begin = min(end, upto)

    def _arguments(self, batch: Batch, whole: bool) -> None:
        """Write the arguments of calls that are whole; of others none."""
        if batch["kind"] == "pieces":
            return
        known, pieces = self._streams[_key(batch)], cast("list[Any]", batch["pieces"])
        deltas: dict[int, list[Batch]] = {}
        for delta in [delta for piece in pieces if _has_calls(piece) for delta in piece["tool_uses"]]:
            known.setdefault(f"arguments of {delta['index']}", _Channel())
            deltas.setdefault(delta["index"], []).append(delta)
        for name in [name for name in known if name.startswith("arguments")]:
            index, held = int(name.rpartition(" ")[2]), known[name].held
            mine = deltas.get(index, [])
            raw = held + "".join([delta.get("arguments", "") for delta in mine])
            said = self._clean_arguments(raw) if whole and raw else ""
            known[name].held = "" if whole else raw
            if said == raw and not held:
                continue
            for delta in mine:
                delta.pop("arguments", None)
            if said and not mine:
                mine = [Batch(index=index)]
                _as_object(pieces, len(pieces) - 1).setdefault("tool_uses", []).extend(mine)
            if said:
                mine[-1]["arguments"] = said

    def _clean_arguments(self, raw: str) -> str:
        use = ToolUseBlock.from_json("call", "call", raw)
        return str(self._clean(raw) if use.input_error is not None else self._clean(use).raw)

    def _rest(self, batch: Batch) -> None:
        """Values of a model's pieces that are whole in themselves."""
        for piece in batch["pieces"] if batch["kind"] != "pieces" else ():
            for name in _WHOLE:
                if name in piece and not isinstance(piece, str):
                    piece[name] = self._clean(piece[name])


_WHOLE = ("blocks", "citations")


def _key(batch: Batch) -> tuple[Any, ...]:
    """Which stream a batch is of; its call comes first."""
    return batch["call"], batch["kind"], batch.get("n"), batch.get("tool_use")


def _has_calls(piece: Any) -> bool:
    return not isinstance(piece, str) and bool(piece.get("tool_uses"))


def _text(batch: Batch, piece: Any, name: str) -> str:
    """A piece's part of a text; a tool's piece that is no text has none."""
    if isinstance(piece, str):
        return piece if name == "text" else ""
    return "" if batch["kind"] == "pieces" else piece.get(name, "")


def _as_object(pieces: list[Any], n: int) -> dict[str, Any]:
    """A model's piece as an object."""
    if isinstance(pieces[n], str):
        pieces[n] = {"text": pieces[n]}
    return pieces[n]


def _say(batch: Batch, n: int, name: str, text: str) -> None:
    pieces = batch["pieces"]
    if isinstance(pieces[n], str) and name == "text":
        pieces[n] = text
    elif batch["kind"] != "pieces":
        _as_object(pieces, n)[name] = text


def _replaced(raw: str, found: Sequence[Find]) -> str:
    def parts() -> Iterator[str]:
        done = 0
        for begin, end, said in found:
            yield raw[done:begin]
            yield said
            done = end
        yield raw[done:]

    return "".join(parts())
