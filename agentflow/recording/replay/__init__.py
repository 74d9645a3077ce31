"""Replay recorded runs: the same driver, with the replies and results of the recording."""

from agentflow.recording.replay.comparing import Divergence
from agentflow.recording.replay.replay import Replay, ReplayOptions, ReplayResult

__all__ = ["Divergence", "Replay", "ReplayOptions", "ReplayResult"]
