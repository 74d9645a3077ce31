"""Reads server-sent events from chunks of bytes, which may end within an event or a character.

Rules:

1. The result is the `data` of each complete event. Comments and other fields are skipped: OpenAI and Anthropic repeat the
   event's name in the data.
2. Lines end in LF, CR LF or CR; several `data` lines of an event are joined with line feeds; a byte order mark at the start is
   skipped.
3. An event larger than the limit is an error: a server must not exhaust the memory.
"""

from collections.abc import Sequence

_MARK = b"\xef\xbb\xbf"


class EventTooLargeError(ValueError):
    """A server sent an event that is too large."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the server sent an event of more than {limit:,} bytes, the limit set with max_event=")


class EventReader:
    """Reads the events of one stream.

    Args:
        limit: The largest event, in bytes.

    Example:
        >>> reader = EventReader()
        >>> reader.feed(b"data: on"), reader.feed(b"e\\n\\n: hello\\ndata: two\\n\\n")
        ((), [b'one', b'two'])
    """

    def __init__(self, limit: int = 1 << 24) -> None:
        self._limit = limit
        self._buffer = bytearray()  # the beginning of an event that is incomplete
        # Whether the byte order mark can no longer come, and whether the next chunk may begin with the LF of a CR LF.
        self._begun = self._ends_in_cr = False

    def feed(self, part: bytes) -> Sequence[bytes]:
        """Return the data of the events that this chunk completes.

        Raises:
            EventTooLargeError: An event is larger than the limit.
        """
        if not self._begun:
            part = self._without_mark(part)
        if self._ends_in_cr or b"\r" in part:
            part = self._with_line_feeds(part)
        buffer = self._buffer
        # The fast path: most chunks are whole events, which are cut out without a copy through the buffer.
        if not buffer:
            whole, found, rest = part.rpartition(b"\n\n")
            if rest:
                buffer += rest
        else:
            # Only the new part is searched: searching the whole buffer for each chunk would take quadratic time.
            start = max(0, len(buffer) - 1)  # the first of the two line feeds may be in an earlier chunk
            buffer += part
            end = buffer.rfind(b"\n\n", start)
            found = end >= 0
            whole = bytes(buffer[:end]) if found else b""
            if found:
                del buffer[: end + 2]
        # Complete events of this chunk are removed already, so only the unfinished one counts.
        if len(buffer) > self._limit:
            raise EventTooLargeError(self._limit)
        return _data(whole) if found else ()

    def rest(self) -> Sequence[bytes]:
        """Return the data of the last event, if no blank line follows it."""
        whole = bytes(self._buffer)
        self._buffer.clear()
        return _data(whole)

    def _without_mark(self, part: bytes) -> bytes:
        if self._buffer:
            part = bytes(self._buffer) + part
            self._buffer.clear()
        # The mark itself may be split between chunks.
        if len(part) < len(_MARK) and _MARK.startswith(part):
            self._buffer += part
            return b""
        self._begun = True
        return part.removeprefix(_MARK)

    def _with_line_feeds(self, part: bytes) -> bytes:
        """Replace each line ending by LF; an LF at the beginning of a chunk belongs to a CR at the end of the previous one."""
        if self._ends_in_cr and part.startswith(b"\n"):
            part = part[1:]
            self._ends_in_cr = False
        if part:
            self._ends_in_cr = part.endswith(b"\r")
        return part.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _data(whole: bytes) -> list[bytes]:
    """Return the data of each event; all events are complete."""
    found: list[bytes] = []
    if whole.startswith(b"data: "):  # OpenAI's wire: each event is one line
        found = whole[6:].split(b"\n\ndata: ")
        # Each separator has two line feeds: if there are no others, no event has another line.
        if whole.count(b"\n") == 2 * len(found) - 2:
            return found
        found = []
    for event in whole.split(b"\n\n"):
        name, _, data = event.partition(b"\ndata: ")
        if (
            data and name.startswith(b"event: ") and event.count(b"\n") == 1
        ):  # Anthropic's wire: an event has several lines
            found.append(data)
            continue
        lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
        if lines:
            found.append(b"\n".join(lines))
    return found
