"""Remove secrets from chunks of a reply or a tool's output; a secret split over several chunks is found too.

Rules:

1. Only settled text is written: text that cannot become part of a secret, whatever text follows.
2. Without matches, chunks are written unchanged. With a match, the first chunk that has text gets the text of the batch.
3. If a batch has to end within a text because another entry follows, the unsettled rest moves to the next batch of the
   stream.
4. The arguments of a tool call are settled when the call is complete, since a secret may contain JSON escapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, cast

from agentflow.vocabulary.messages import ToolUseBlock

__all__ = ["FindMatches", "Match", "StreamRedactor"]

Match: TypeAlias = tuple[int, int, str]
"""The start and end of a secret in a text, and its replacement."""
FindMatches: TypeAlias = Callable[[str, int, bool], tuple[list[Match], int]]
"""Takes a text, a start, and whether the text is complete; returns the matches, and the end of the settled part."""
Batch: TypeAlias = dict[str, Any]

_CONTEXT = 200
"""Characters of context before a text that are searched too."""


class _Channel:
    """A text that arrives in chunks: a reply's text, its thinking, or the arguments of a tool call."""

    __slots__ = ("before", "held")

    def __init__(self) -> None:
        self.before = ""  # the end of the written text
        self.held = ""  # unsettled text from the last batch

    def look(self, finds: FindMatches, raw: str, whole: bool) -> tuple[list[Match], int]:
        """Search the text that follows the written one; positions in the result are relative to `raw`."""
        start = len(self.before)
        found, reached = finds(self.before + raw, start, whole)
        return [(begin - start, end - start, replacement) for begin, end, replacement in found], reached - start

    def advance(self, raw: str, settled_end: int) -> None:
        """Mark the text as written up to `settled_end`, and hold back the rest."""
        self.before, self.held = (self.before + raw[:settled_end])[-_CONTEXT:], raw[settled_end:]


class StreamRedactor:
    """Removes secrets from batches of chunks; one instance per log.

    Args:
        clean: Removes secrets from a value.
        finds: Locates secrets in a text; if None, a text is settled only when it is complete.
    """

    def __init__(self, clean: Callable[[Any], Any], finds: FindMatches | None) -> None:
        self._clean = clean
        self._finds = finds or self._only_whole
        self._streams: dict[tuple[Any, ...], dict[str, _Channel]] = {}

    def _only_whole(self, text: str, start: int, whole: bool) -> tuple[list[Match], int]:
        if not whole:
            return [], start
        clean = str(self._clean(text[start:]))
        return ([] if clean == text[start:] else [(start, len(text), clean)]), len(text)

    def begin(self, batch: Batch) -> None:
        """Start a batch; if its first chunk restarts the reply, discard the text held back from earlier chunks."""
        if batch.get("restart"):
            self._streams.pop(_key(batch), None)

    def forget(self, call: str) -> None:
        """Discard the state of a finished call."""
        for key in [key for key in self._streams if key[0] == call]:
            del self._streams[key]

    def take_settled(self, batch: Batch) -> Batch | None:
        """Split off and return the leading chunks of an open batch that may be written; None if there are none."""
        pieces = cast("list[Any]", batch["pieces"])
        calls = [n for n, piece in enumerate(pieces) if batch["kind"] != "pieces" and _has_calls(piece)]
        # Arguments are cleaned as a whole (rule 4), so nothing from the first call on is split off.
        most = calls[0] if calls else len(pieces)
        looked: list[tuple[str, str, list[Match], int, list[int]]] = []
        for name, channel in self._channels(batch).items():
            borders = [len(channel.held)]
            for piece in pieces:
                borders.append(borders[-1] + len(_text(batch, piece, name)))
            raw = channel.held + "".join([_text(batch, piece, name) for piece in pieces])
            looked.append((name, raw, *channel.look(self._finds, raw, whole=False), borders))

        def can_split(n: int) -> bool:
            return all(
                borders[n] <= reached and not any(begin < borders[n] < end for begin, end, _ in found)
                for _, _, found, reached, borders in looked
            )

        # As many chunks as possible, up to a border that in each of the texts is settled and not inside a secret.
        n = next((n for n in range(most, 0, -1) if can_split(n)), 0)
        if n == 0:
            return None
        front = {**batch, "pieces": pieces[:n], "at": batch["at"][:n]}
        paused = batch.pop("paused", [])
        if paused[:n]:
            front["paused"] = paused[:n]
        for name, raw, found, _, borders in looked:
            self._write(front, name, raw, [match for match in found if match[1] <= borders[n]], borders[n])
            self._channels(batch)[name].held = ""  # the rest of the text is still in the chunks of the open batch
        self._clean_whole_fields(front)
        batch["pieces"] = pieces[n:]
        if batch["pieces"]:
            offset = batch["at"][n]
            batch["time"] += offset / 1000
            batch["at"] = [round(at - offset, 3) for at in batch["at"][n:]]
            if paused[n:]:
                batch["paused"] = paused[n:]
            if "seq" in batch:
                batch["seq"] += n
            batch.pop("restart", None)
        return front

    def close(self, batch: Batch, whole: bool) -> None:
        """Remove secrets from a batch that ends.

        Args:
            batch: The batch to redact.
            whole: Whether the stream ends with it.
        """
        for name, channel in self._channels(batch).items():
            raw = channel.held + "".join([_text(batch, piece, name) for piece in batch["pieces"]])
            found, reached = channel.look(self._finds, raw, whole)
            self._write(batch, name, raw, found, reached)
        self._arguments(batch, whole)
        self._clean_whole_fields(batch)
        if whole:
            self._streams.pop(_key(batch), None)

    def _channels(self, batch: Batch) -> dict[str, _Channel]:
        names = ("text",) if batch["kind"] == "pieces" else ("text", "thinking")
        known = self._streams.setdefault(_key(batch), {name: _Channel() for name in names})
        return {name: known[name] for name in names}

    def _write(self, batch: Batch, name: str, raw: str, found: Sequence[Match], settled_end: int) -> None:
        """Write the settled part of a text into the chunks."""
        channel = self._channels(batch)[name]
        pieces, held = cast("list[Any]", batch["pieces"]), len(channel.held)
        channel.advance(raw, settled_end)
        if not found and not held and settled_end == len(raw):  # rule 2
            return
        places = [n for n, piece in enumerate(pieces) if _text(batch, piece, name)] or [len(pieces) - 1]
        if found:
            _set_text(batch, places[0], name, _replaced(raw[:settled_end], found))
            # A replacement has another length, so the text can no longer be divided as it arrived.
            for n in places[1:]:
                _set_text(batch, n, name, "")
            return
        begin = 0
        for index, n in enumerate(places):
            end = begin + len(_text(batch, pieces[n], name)) + (held if index == 0 else 0)
            _set_text(batch, n, name, raw[begin : min(end, settled_end)])
            begin = min(end, settled_end)

    def _arguments(self, batch: Batch, whole: bool) -> None:
        """Write the arguments of calls that are complete, and hold back the others."""
        if batch["kind"] == "pieces":
            return
        known, pieces = self._streams[_key(batch)], cast("list[Any]", batch["pieces"])
        deltas: dict[int, list[Batch]] = {}
        for delta in [delta for piece in pieces if _has_calls(piece) for delta in piece["tool_uses"]]:
            known.setdefault(f"arguments of {delta['index']}", _Channel())
            deltas.setdefault(delta["index"], []).append(delta)
        for name in [name for name in known if name.startswith("arguments")]:
            index, held = int(name.rpartition(" ")[2]), known[name].held
            parts = deltas.get(index, [])
            raw = held + "".join([delta.get("arguments", "") for delta in parts])
            clean = self._clean_arguments(raw) if whole and raw else ""
            known[name].held = "" if whole else raw
            if clean == raw and not held:
                continue
            for delta in parts:
                delta.pop("arguments", None)
            if clean and not parts:
                parts = [Batch(index=index)]
                _as_object(pieces, len(pieces) - 1).setdefault("tool_uses", []).extend(parts)
            if clean:
                parts[-1]["arguments"] = clean

    def _clean_arguments(self, raw: str) -> str:
        use = ToolUseBlock.from_json("call", "call", raw)
        return str(self._clean(raw) if use.input_error is not None else self._clean(use).raw)

    def _clean_whole_fields(self, batch: Batch) -> None:
        """Clean the fields of a model's chunks that are never split over several chunks."""
        for piece in batch["pieces"] if batch["kind"] != "pieces" else ():
            for name in _WHOLE:
                if name in piece and not isinstance(piece, str):
                    piece[name] = self._clean(piece[name])


_WHOLE = ("blocks", "citations")
"""The fields of a model's chunk that are never split over several chunks."""


def _key(batch: Batch) -> tuple[Any, ...]:
    """Return the key of a batch's stream; it starts with the call."""
    return batch["call"], batch["kind"], batch.get("n"), batch.get("tool_use")


def _has_calls(piece: Any) -> bool:
    return not isinstance(piece, str) and bool(piece.get("tool_uses"))


def _text(batch: Batch, piece: Any, name: str) -> str:
    """Return a chunk's part of a text; a tool's chunk that is not text has none."""
    if isinstance(piece, str):
        return piece if name == "text" else ""
    return "" if batch["kind"] == "pieces" else piece.get(name, "")


def _as_object(pieces: list[Any], n: int) -> dict[str, Any]:
    """Convert a model's chunk to an object in place."""
    if isinstance(pieces[n], str):
        pieces[n] = {"text": pieces[n]}
    return pieces[n]


def _set_text(batch: Batch, n: int, name: str, text: str) -> None:
    pieces = batch["pieces"]
    if isinstance(pieces[n], str) and name == "text":
        pieces[n] = text
    elif batch["kind"] != "pieces":
        _as_object(pieces, n)[name] = text


def _replaced(raw: str, found: Sequence[Match]) -> str:
    def parts() -> Iterator[str]:
        done = 0
        for begin, end, replacement in found:
            yield raw[done:begin]
            yield replacement
            done = end
        yield raw[done:]

    return "".join(parts())
