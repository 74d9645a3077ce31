"""A picture as SVG: boxes, arrows and text, in light or dark colours as the viewer prefers.

Colours are classes, and the style inside the picture defines them for light and dark. Fonts are the viewer's own, so
widths are estimates, and rather too large than too small.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias
from xml.sax.saxutils import escape

__all__ = ["Anchor", "Colour", "Picture", "width_of"]

Colour: TypeAlias = Literal["plain", "call", "model", "tool", "guard", "seen", "fact", "paper"]
"""The subject of a box: the call, the model, tools, guards, observers or facts; `paper` is the background."""

Anchor: TypeAlias = Literal["start", "middle", "end"]

_LIGHT: Final[dict[Colour, tuple[str, str, str]]] = {
    "plain": ("#f8fafc", "#94a3b8", "#334155"),
    "call": ("#f0fdfa", "#0f766e", "#115e59"),
    "model": ("#eff6ff", "#2563eb", "#1e40af"),
    "tool": ("#fffbeb", "#b45309", "#92400e"),
    "guard": ("#fff1f2", "#be123c", "#9f1239"),
    "seen": ("#f5f3ff", "#7c3aed", "#5b21b6"),
    "fact": ("#f7fee7", "#4d7c0f", "#3f6212"),
    "paper": ("#ffffff", "#e2e8f0", "#0f172a"),
}
"""Background, line and text of each colour."""

_DARK: Final[dict[Colour, tuple[str, str, str]]] = {
    "plain": ("#1e293b", "#64748b", "#cbd5e1"),
    "call": ("#0c2f2e", "#2dd4bf", "#99f6e4"),
    "model": ("#14264a", "#60a5fa", "#bfdbfe"),
    "tool": ("#33230c", "#f59e0b", "#fde68a"),
    "guard": ("#3b111d", "#fb7185", "#fecdd3"),
    "seen": ("#251a45", "#a78bfa", "#ddd6fe"),
    "fact": ("#1c2a0e", "#a3e635", "#d9f99d"),
    "paper": ("#0f172a", "#1e293b", "#f1f5f9"),
}

_FONTS: Final = (
    ".t{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue','DejaVu Sans',sans-serif}"
    ".m{font-family:ui-monospace,'SF Mono',Menlo,Consolas,'DejaVu Sans Mono',monospace}"
    ".b{font-weight:600}"
)


def _style() -> str:
    def rules(colours: dict[Colour, tuple[str, str, str]], muted: str) -> str:
        return (
            "".join(
                f".{name} .f,.f.{name}{{fill:{ground};stroke:{line}}}.l.{name}{{fill:none;stroke:{line}}}"
                f".a.{name}{{fill:{line};stroke:none}}.x.{name}{{fill:{text}}}"
                for name, (ground, line, text) in colours.items()
            )
            + f".x.muted{{fill:{muted}}}"
        )

    return f"{_FONTS}{rules(_LIGHT, '#475569')}@media(prefers-color-scheme:dark){{{rules(_DARK, '#a5b4c8')}}}"


def width_of(text: str, size: float, mono: bool = False) -> float:
    """Estimate the width of a text, in units of the picture."""
    return len(text) * size * (0.61 if mono else 0.56)


@dataclass
class Picture:
    """A picture that is being drawn.

    Attributes:
        width: The width in units; pages show a unit as about one pixel.
        height: The height in units.
        title: The description, for screen readers.
    """

    width: int
    height: int
    title: str
    _parts: list[str] = field(default_factory=list[str])

    def box(
        self, x: float, y: float, w: float, h: float, colour: Colour = "plain", *, dash: bool = False, r: float = 8
    ) -> None:
        """Draw a rectangle with round corners."""
        more = ' stroke-dasharray="5 4"' if dash else ""
        self._parts.append(
            f'<rect class="f {colour}" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{r:g}" stroke-width="1.5"{more}/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        colour: Colour | Literal["muted"] = "paper",
        *,
        size: float = 13,
        anchor: Anchor = "start",
        mono: bool = False,
        bold: bool = False,
    ) -> None:
        """Draw a line of text; `y` is its base line."""
        classes = f"x {colour} {'m' if mono else 't'}{' b' if bold else ''}"
        self._parts.append(
            f'<text class="{classes}" x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def chip(
        self, x: float, y: float, w: float, h: float, lines: list[tuple[str, float, bool, bool]], colour: Colour
    ) -> None:
        """Draw a box with centred lines; each is a text, its size, and whether it is monospaced and bold."""
        self.box(x, y, w, h, colour)
        height = sum(size * 1.3 for _, size, _, _ in lines)
        at = y + (h - height) / 2
        for text, size, mono, bold in lines:
            at += size * 1.3
            self.text(x + w / 2, at - size * 0.32, text, colour, size=size, anchor="middle", mono=mono, bold=bold)

    def line(
        self, points: str, colour: Colour = "plain", *, dash: bool = False, width: float = 1.8, head: bool = True
    ) -> None:
        """Draw a path (`M… L…`, `C…`), with an arrow head at its end; the last two points define the direction."""
        more = ' stroke-dasharray="5 4"' if dash else ""
        self._parts.append(f'<path class="l {colour}" d="{points}" stroke-width="{width:g}"{more}/>')
        if head:
            numbers = [float(word) for word in points.replace(",", " ").translate(_LETTERS).split()]
            x0, y0, x1, y1 = numbers[-4:]
            length = max(((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5, 0.01)
            dx, dy = (x1 - x0) / length, (y1 - y0) / length
            a = (x1 - dx * 9 - dy * 4.6, y1 - dy * 9 + dx * 4.6)
            b = (x1 - dx * 9 + dy * 4.6, y1 - dy * 9 - dx * 4.6)
            at = f"{x1 + dx:.1f},{y1 + dy:.1f} {a[0]:.1f},{a[1]:.1f} {b[0]:.1f},{b[1]:.1f}"
            self._parts.append(f'<polygon class="a {colour}" points="{at}"/>')

    def svg(self) -> str:
        """Return the text of the file."""
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
                f"<title>{escape(self.title)}</title>",
                f"<style>{_style()}</style>",
                f'<rect class="f paper" x="0.75" y="0.75" width="{self.width - 1.5}" height="{self.height - 1.5}" rx="12"/>',
                *self._parts,
                "</svg>",
                "",
            ]
        )


_LETTERS: Final = str.maketrans("MLCQHV", "      ")
