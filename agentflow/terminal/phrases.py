"""Short texts for values: arguments, results, durations, costs.

Rules:

1. All output goes through a `Screen` or the commands' `say`, which escape control characters.
2. A value is one line, shortened to the available width.
"""

from __future__ import annotations

from agentflow._support.shown import one_line
from agentflow.vocabulary.messages import ToolUseBlock
from agentflow.vocabulary.specs import Usage


def shorten(text: str, room: int) -> str:
    """Return the text on one line of at most `room` characters.

    Example:
        >>> shorten("one\\n  two three", 9)
        'one two …'
    """
    flat = one_line(text)
    return flat if len(flat) <= room else f"{flat[: max(0, room - 1)]}…"


def ends_of(text: str, room: int) -> str:
    """Return a text on one line. If it is too long: its start and its last line, which is usually the most informative.

    Example:
        >>> ends_of("one two three\\nfour\\n[exit code 1]", 30)
        'one two three … [exit code 1]'
    """
    flat = one_line(text)
    last = one_line(text.rstrip().rpartition("\n")[2])
    if len(flat) <= room or len(last) == len(flat):
        return shorten(flat, room)
    last = shorten(last, room // 2)
    return f"{flat[: max(0, room - len(last) - 3)].rstrip()} … {last}"


def call_text(use: ToolUseBlock, room: int) -> str:
    """Format a tool call.

    Example:
        >>> call_text(ToolUseBlock("t1", "add", {"a": 1, "b": 2}), 60)
        'add(a=1, b=2)'
    """
    if use.input_error is not None:
        return shorten(f"{use.name}({use.raw}", room)
    inside = ", ".join(f"{name}={shorten(repr(value), max(20, room // 2))}" for name, value in use.input.items())
    return shorten(f"{use.name}({inside}", room - 1) + ")"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 round`, `2 rounds`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration_text(seconds: float, *, whole: bool = False) -> str:
    """Format a duration.

    Args:
        seconds: The duration.
        whole: Whether to show whole seconds, for a display that is updated.

    Example:
        >>> duration_text(0.0312), duration_text(2.345), duration_text(75)
        ('31 ms', '2.3 s', '1 min 15 s')
    """
    if whole and seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 0.001:
        return "<1 ms"
    if seconds < 0.9995:  # a longer one would be rounded to 1000 ms
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def tokens_text(usage: Usage) -> str:
    """Format token counts; the totals include thinking and cached tokens.

    Example:
        >>> tokens_text(Usage(input_tokens=1200, output_tokens=80))
        '1,200 in, 80 out'
    """
    parts = [f"{usage.input_tokens:,} in", f"{usage.output_tokens:,} out"]
    if usage.reasoning_tokens:
        parts.append(f"{usage.reasoning_tokens:,} of them thinking")
    if usage.cache_read_tokens:
        parts.append(f"{usage.cache_read_tokens:,} from cache")
    return ", ".join(parts)


def cost_text(usage: Usage) -> str:
    """Format a cost; `unknown` if the price is not known.

    Example:
        >>> cost_text(Usage(cost=0.00046)), cost_text(Usage())
        ('$0.00046', 'unknown')
    """
    if usage.cost is None:
        return "unknown"
    return (
        f"${usage.cost:.2f}"
        if usage.cost >= 1
        else f"${usage.cost:.2g}"
        if usage.cost >= 0.0001
        else f"${usage.cost:.6f}"
    )
