"""Recorded runs: the run log and its reader, the recorder that writes a log, and the replay that repeats its run."""

from typing import TYPE_CHECKING

from agentflow._support.lazy import lazily
from agentflow.recording.entries import Entry
from agentflow.recording.log import RunLog
from agentflow.recording.reading import RunLogError, load, read_lines
from agentflow.recording.schema import json_schema

if TYPE_CHECKING:
    from agentflow.recording.backtest import BacktestReport, RunResult, Variant
    from agentflow.recording.graphing import run_graph
    from agentflow.recording.recorder import Explanation, Recorder, Recording, export_log
    from agentflow.recording.replay import Divergence, Replay, ReplayOptions, ReplayResult

__all__ = [
    "BacktestReport",
    "Divergence",
    "Entry",
    "Explanation",
    "Recorder",
    "Recording",
    "Replay",
    "ReplayOptions",
    "ReplayResult",
    "RunLog",
    "RunLogError",
    "RunResult",
    "Variant",
    "export_log",
    "json_schema",
    "load",
    "read_lines",
    "run_graph",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        ".backtest": "BacktestReport RunResult Variant",
        ".recorder": "Explanation Recorder Recording export_log",
        ".replay": "Divergence Replay ReplayOptions ReplayResult",
        ".graphing": "run_graph",
    },
)
