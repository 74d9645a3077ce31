"""Virtual time for tests; see `agentflow._support.virtual_time`."""

from agentflow._support.virtual_time import VirtualClockLoop, run_virtual

__all__ = ["VirtualClockLoop", "run_virtual"]
