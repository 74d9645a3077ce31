"""The result of a benchmark, and its printed form."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

__all__ = ["Figure", "as_json", "environment", "line", "title"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured line.

    Attributes:
        row: The benchmark that it belongs to.
        what: The measured quantity.
        value: The figure that the budget is about.
        unit: `"x"` is a ratio to the bare loop.
        budget: The limit; None: only printed.
        at_least: The budget is a lower limit.
        detail: Its absolute figures.
    """

    row: str
    what: str
    value: float
    unit: str = "x"
    budget: float | None = None
    at_least: bool = False
    detail: str = ""

    @property
    def ok(self) -> bool | None:
        """Whether the budget is kept; None if there is none."""
        if self.budget is None:
            return None
        return self.value >= self.budget if self.at_least else self.value <= self.budget


def environment() -> dict[str, Any]:
    """Machine and versions, without which no figure means anything."""
    packages = {}
    for name in ("reactivex", "pydantic", "litellm", "aiohttp", "msgspec"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "not installed"
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(terse=True),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "packages": packages,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            for text in info:
                if text.startswith("model name"):
                    return text.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def title() -> str:
    """The heading of a report."""
    env = environment()
    packages = ", ".join(f"{name} {number}" for name, number in env["packages"].items())
    return (
        f"{env['python']} on {env['platform']}, {env['cpus']} x {env['processor']}; {packages}\n\n"
        f"{'':2}{'row':<10}{'what':<52}{'measured':>12}  {'budget':<10}detail"
    )


def _number(value: float, unit: str) -> str:
    shown = f"{value:.3f}" if value < 0.1 else f"{value:.2f}" if value < 100 else f"{value:.0f}"
    return f"{shown}{unit}" if unit in ("x", "%") else f"{shown} {unit}"


def line(figure: Figure) -> str:
    """One line of the table."""
    mark = {True: "ok", False: "OVER", None: ""}[figure.ok]
    budget = ""
    if figure.budget is not None:
        budget = ("≥ " if figure.at_least else "≤ ") + f"{figure.budget:g}"
    return (
        f"{mark:<5}{figure.row:<9}{figure.what:<50}{_number(figure.value, figure.unit):>12}  {budget:<9}{figure.detail}"
    )


def as_json(figures: Sequence[Figure]) -> dict[str, Any]:
    """The report for programs."""
    return {
        **environment(),
        "version": sys.version,
        "figures": [{**asdict(figure), "ok": figure.ok} for figure in figures],
    }
