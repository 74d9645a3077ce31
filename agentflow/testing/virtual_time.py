"""Virtual time for tests; see `agentflow.ground.virtual_time`."""

from agentflow.ground.virtual_time import VirtualClockLoop, run_virtual

__all__ = ["VirtualClockLoop", "run_virtual"]
