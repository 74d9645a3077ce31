"""Detect the media type of data, and read files of limited size.

Rules:

1. The content takes precedence over the name: providers check that the declared type is correct.
2. For a container that many formats use (ZIP), the name is used.
3. The types of file extensions are those of the standard library, without the machine's configuration files, so the
   result is the same on every machine.
"""

from __future__ import annotations

import os
import stat
from base64 import b64decode
from functools import cache
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

from agentflow.errors import UsageError

if TYPE_CHECKING:
    from mimetypes import MimeTypes

MediaKind: TypeAlias = Literal["image", "audio", "video", "text", "pdf", "file"]
"""The kind of data, as distinguished by models."""

MAX_BYTES: Final = 20_000_000
"""The default maximum size of content; in base64 it fits into the 32 MB that vendors accept in a request."""

# Signatures: the first bytes; for containers, the position and the bytes of the second part, which names the format.
_STARTS: Final[tuple[tuple[bytes, int, bytes, str], ...]] = (
    (b"\x89PNG\r\n\x1a\n", 0, b"", "image/png"),
    (b"\xff\xd8\xff", 0, b"", "image/jpeg"),
    (b"GIF87a", 0, b"", "image/gif"),
    (b"GIF89a", 0, b"", "image/gif"),
    (b"RIFF", 8, b"WEBP", "image/webp"),
    (b"RIFF", 8, b"WAVE", "audio/wav"),
    (b"RIFF", 8, b"AVI ", "video/x-msvideo"),
    (b"BM", 6, b"\0\0\0\0", "image/bmp"),  # the reserved bytes; "BM" alone may begin a text
    (b"II*\0", 0, b"", "image/tiff"),
    (b"MM\0*", 0, b"", "image/tiff"),
    (b"%PDF-", 0, b"", "application/pdf"),
    (b"ID3", 0, b"", "audio/mpeg"),
    (b"\xff\xfb", 0, b"", "audio/mpeg"),
    (b"\xff\xf3", 0, b"", "audio/mpeg"),
    (b"\xff\xf1", 0, b"", "audio/aac"),
    (b"\xff\xf9", 0, b"", "audio/aac"),
    (b"OggS", 0, b"", "audio/ogg"),
    (b"fLaC", 0, b"", "audio/flac"),
    (b"\x1aE\xdf\xa3", 0, b"", "video/webm"),  # EBML, also the container of Matroska
    (b"\x1f\x8b", 0, b"", "application/gzip"),
)
# Brands after `ftyp` in containers of the MPEG-4 family (ISO/IEC 14496-12).
_BRANDS: Final = (
    (b"avif", "image/avif"),
    (b"heic", "image/heic"),
    (b"heix", "image/heic"),
    (b"mif1", "image/heif"),
    (b"M4A ", "audio/mp4"),
    (b"M4B ", "audio/mp4"),
    (b"qt  ", "video/quicktime"),
)
_NO_PATH: Final = str.maketrans("/\\\0", "___")
"""A translation that replaces characters which are unsafe in file names."""

_HEAD: Final = 4096
"""The number of bytes that are examined to recognise text."""
_UNITS: Final = ("bytes", "kB", "MB", "GB")
_UNKNOWN: Final = "application/octet-stream"


def sniff(data: bytes) -> str | None:
    """Return the media type of data if its first bytes are conclusive.

    Example:
        >>> sniff(b"%PDF-1.7"), sniff(b"hello")
        ('application/pdf', None)
    """
    for start, at, inside, media_type in _STARTS:
        if data.startswith(start) and data.startswith(inside, at):
            return media_type
    if data[4:8] == b"ftyp":
        return next((kind for brand, kind in _BRANDS if data[8:12] == brand), "video/mp4")
    return None


def type_of_name(name: str) -> str | None:
    """Return the media type of a file's name, or of an address, by its extension.

    Example:
        >>> type_of_name("report.PDF"), type_of_name("https://example.com/cat.webp?size=2"), type_of_name("README")
        ('application/pdf', 'image/webp', None)
    """
    found, packed = _types().guess_type(name_in(name) or "", strict=False)
    return "application/gzip" if packed == "gzip" else found if packed is None else None


@cache
def _types() -> MimeTypes:
    from mimetypes import MimeTypes  # not loaded with the package: most programs show no files

    types = MimeTypes()
    types.add_type("text/markdown", ".md")
    types.add_type("audio/flac", ".flac")
    for name, ending in (("wordprocessingml.document", "docx"), ("spreadsheetml.sheet", "xlsx")):
        types.add_type(f"application/vnd.openxmlformats-officedocument.{name}", f".{ending}")
    return types


def type_of_bytes(data: bytes, name: str | None = None) -> str:
    """Return the media type of data by its first bytes or its name; otherwise text, if it decodes as text.

    Example:
        >>> type_of_bytes(b"a,b", "t.csv"), type_of_bytes(b"hello"), type_of_bytes(bytes(8))
        ('text/csv', 'text/plain', 'application/octet-stream')
    """
    known = sniff(data) or (type_of_name(name) if name else None)
    if known is not None:
        return known
    if data.startswith(b"PK\x03\x04"):  # ZIP, after the name (rule 2)
        return "application/zip"
    head = data[:_HEAD]
    try:
        head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3 or len(head) == len(data):  # otherwise the head ends within a character
            return _UNKNOWN
    return "text/plain" if data and b"\0" not in head else _UNKNOWN  # UTF-8 allows zero bytes; no text contains them


def kind_of(media_type: str) -> MediaKind:
    """Return the kind of a media type.

    Example:
        >>> kind_of("image/png"), kind_of("application/pdf"), kind_of("application/zip")
        ('image', 'pdf', 'file')
    """
    kind = media_type.partition("/")[0].lower()
    if kind in ("image", "audio", "video", "text"):
        return cast("MediaKind", kind)
    return "pdf" if media_type.lower().startswith("application/pdf") else "file"


def in_bytes(size: int) -> str:
    """Return a size as text.

    Example:
        >>> in_bytes(812), in_bytes(34_120), in_bytes(20_000_000)
        ('812 bytes', '34 kB', '20 MB')
    """
    if size < 1000:
        return f"{size} bytes"
    step = next((step for step in (1, 2) if size < 999.5 * 1000**step), 3)  # from 999.5 on, it would be shown as 1000
    number = size / 1000**step
    return f"{number:.1f} {_UNITS[step]}" if number < 9.95 and round(number, 1) % 1 else f"{number:.0f} {_UNITS[step]}"


def check_size(size: int, limit: int | None, what: str) -> None:
    """Check that content is not larger than the limit.

    Raises:
        UsageError: The content is larger.
    """
    if limit is not None and size > limit:
        raise UsageError(
            f"{what} has more than the {in_bytes(limit)} that max_bytes= allows. Make it smaller, allow more "
            f"(max_bytes={max(size, 2 * limit)}), or let the provider fetch it: DataBlock.from_url(...)."
        )


def read_file(path: str | os.PathLike[str], limit: int | None) -> bytes:
    """Return the content of a file.

    Raises:
        UsageError: The file is larger than the limit, or not a regular file.
        OSError: The file cannot be read.
    """
    shown = os.fspath(path)
    with open(path, "rb", opener=_without_waiting) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"DataBlock.from_path({shown!r}): this is not a regular file.")
        check_size(found.st_size, limit, f"The file {shown!r}")
        data = file.read(-1 if limit is None else limit + 1)  # the file may have grown
        check_size(len(data), limit, f"The file {shown!r}")
        return data


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # opening a pipe would wait for its writer


def name_in(url: str) -> str | None:
    """Return the last part of a path, or of the path of an address.

    Example:
        >>> name_in("https://example.com/a/the%20cat.png?x=1"), name_in("docs/cat.png"), name_in("https://example.com")
        ('the cat.png', 'cat.png', None)
    """
    _, address, rest = url.partition("://")
    if not address:
        return os.path.basename(url) or None
    path = rest.partition("#")[0].partition("?")[0].partition("/")[2]
    name = _unquoted(path.rpartition("/")[2]).decode(errors="replace")
    return name.translate(_NO_PATH) or None


def from_data_url(rest: str) -> tuple[bytes, str | None]:
    """Return the content and the media type of a data URL, given the part after `data:` (RFC 2397).

    Raises:
        UsageError: The URL has no content, or the content is not valid base64.

    Example:
        >>> from_data_url("text/plain;base64,aGVsbG8=")
        (b'hello', 'text/plain')
    """
    head, comma, content = rest.partition(",")
    media_type, *notes = head.split(";")
    if not comma:
        raise UsageError("DataBlock.from_url('data:...'): there is no comma before the content.")
    data = _unquoted(content)
    try:
        return b64decode(data, validate=True) if "base64" in notes else data, media_type or None
    except ValueError as error:
        raise UsageError(f"DataBlock.from_url('data:{head:.80},...'): the content is not base64: {error}.") from error


def _unquoted(text: str) -> bytes:
    if "%" not in text:
        return text.encode()
    from urllib.parse import unquote_to_bytes  # not loaded with the package

    return unquote_to_bytes(text)
