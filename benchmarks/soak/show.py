"""The display of the soak: a live line, or one line per half minute without a terminal, and a table at the end."""

from __future__ import annotations

from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from benchmarks.report import environment
from benchmarks.soak.gauge import BOUND, STEPS, Held
from benchmarks.soak.soak import Asked, Broken, Soaked

__all__ = ["Shown", "as_json", "table"]

_OFTEN = 30.0
_HELD = ("files", "tasks", "threads", "connections")


class Shown:
    """Shows how far it is."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._live = (
            Live(console=self._console, auto_refresh=False, transient=True) if self._console.is_terminal else None
        )
        self._said = -_OFTEN

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, soaked: Soaked) -> None:
        """How far it is."""
        if self._live is not None:
            self._live.update(Text(_line(soaked)), refresh=True)
        elif soaked.seconds - self._said >= _OFTEN:
            self._said = soaked.seconds
            self._console.print(Text(_line(soaked)))

    def told(self, broken: Broken) -> None:
        """Something is broken."""
        again = "" if broken.seed is None else f"\n  again: python -m benchmarks.soak --seed {broken.seed}"
        self._console.print(Text(f"BROKEN: {broken.what}{again}\n{broken.where}"))


def _line(soaked: Soaked) -> str:
    count, now, start = soaked.counts, soaked.samples[-1], soaked.started
    assert start is not None
    return (
        f"{_clock(soaked.seconds)}  {count['sessions']:,} sessions, {count['calls']:,} calls, {count['rounds']:,} rounds, "
        f"{count['faults']:,} faults, {soaked.laws:,} laws held, {len(soaked.broken)} broken; "
        f"{now.memory / 1024:.1f} MB ({start.memory / 1024:.1f} at the start), {_held(now)}"
    )


def _held(one: Held) -> str:
    return ", ".join(f"{getattr(one, name)} {name}" for name in _HELD)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:3}:{int(seconds) % 60:02}"


def table(soaked: Soaked) -> str:
    """The result, as a table in Markdown."""
    count, start, left, memory = soaked.counts, soaked.started, soaked.left, soaked.memory
    assert start is not None
    assert left is not None
    env = environment()
    rows = {
        "Python": f"{env['python']}, {env['cpus']} × {env['processor']}",
        "time": f"{_clock(soaked.seconds).strip()} minutes",
        "sessions": f"{count['sessions']:,} ({', '.join(f'{name} {n:,}' for name, n in soaked.stores.most_common())})",
        "calls": f"{count['calls']:,}, with {count['rounds']:,} rounds of tools",
        "requests over the wires": f"{count['requests']:,}, of which {count['faults']:,} were answered with a fault",
        "durable workers": f"{count['worker calls']:,} calls, {count['workers killed']:,} workers killed",
        "laws": f"held {soaked.laws:,} times, {len(soaked.broken)} broken",
        "memory": f"{start.memory / 1024:.1f} MB at the start, {left.memory / 1024:.1f} MB at the end",
        "growth of memory": "too short to tell"
        if memory is None
        else f"{memory.growth:.1f} ± {memory.error:.1f} KB in 1,000 calls, {memory.rise / 1024:.1f} MB in all, "
        f"after the warm-up (the bound: {BOUND:.0f} KB, where it is more than {STEPS // 1024} MB in all)",
        "before": _held(start),
        "left": _held(left),
    }
    rows |= {"left out": " ".join(soaked.notes)} if soaked.notes else {}
    lines = [f"| {name} | {told} |" for name, told in rows.items()]
    return "\n".join(["", "| Soak | |", "|---|---|", *lines])


def as_json(asked: Asked, soaked: Soaked) -> dict[str, Any]:
    """The same for programs."""
    started, left, memory = soaked.started, soaked.left, soaked.memory
    assert started is not None
    assert left is not None
    return {
        "asked": {**asked._asdict(), "world": asked.world.__name__},
        "seconds": soaked.seconds,
        "counts": dict(soaked.counts),
        "stores": dict(soaked.stores),
        "laws": soaked.laws,
        "broken": [one._asdict() for one in soaked.broken],
        "notes": soaked.notes,
        "memory": None if memory is None else memory._asdict(),
        "started": started._asdict(),
        "left": left._asdict(),
        "samples": [one._asdict() for one in soaked.samples],
        "environment": environment(),
    }
