"""Runs that were recorded, run again: the same driver, with the replies and results of the recording."""

from agentflow.replay.comparing import Departure
from agentflow.replay.replay import Replay, Replayed, ReplayOptions

__all__ = ["Departure", "Replay", "ReplayOptions", "Replayed"]
