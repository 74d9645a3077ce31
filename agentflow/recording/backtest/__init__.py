"""Backtests: recorded runs replayed with another hook, prompt or model, and a table of the decisions that change."""

from agentflow.recording.backtest.backtest import backtest
from agentflow.recording.backtest.judging import RunResult, Variant
from agentflow.recording.backtest.report import BacktestReport

__all__ = ["BacktestReport", "RunResult", "Variant", "backtest"]
