"""The testing kit: scripted models, step-by-step verification, virtual time; `agentflow.testing.wire` has strict servers."""

from agentflow.testing.clock import VirtualClockLoop, run_virtual
from agentflow.testing.scripted import Line, ScriptedModel
from agentflow.testing.verify import Probe, Verifier, verify

__all__ = ["Line", "Probe", "ScriptedModel", "Verifier", "VirtualClockLoop", "run_virtual", "verify"]
