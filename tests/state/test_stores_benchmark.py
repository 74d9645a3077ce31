"""The benchmark of the stores runs; its figures are not asserted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[2]


def test_the_benchmark_measures_every_store() -> None:
    """A quick run prints one line for each store, with all its figures."""
    command = [sys.executable, "-W", "error", "-m", "benchmarks.stores", "--quick"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    rows = [line for line in ended.stdout.splitlines() if line.startswith(("memory", "SQLite", "PostgreSQL"))]
    assert [(row[:28].strip(), len(row[28:].split())) for row in rows] == [
        ("memory", 9),
        ("SQLite", 9),
        ("SQLite, power_safe=False", 9),
        ("PostgreSQL", 9),
        ("PostgreSQL, power_safe=False", 9),
    ]
    durable = [line.split(":")[0] for line in ended.stdout.splitlines() if line.startswith("DBOS")]
    assert durable == ["DBOS, SQLite", "DBOS, PostgreSQL"]
