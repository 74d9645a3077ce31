"""The testing kit: scripted models, step-by-step verification, virtual time, `check_hook` for authors of hooks.

`agentflow.testing.wire` has strict servers.
"""

from agentflow.testing.check_hook import (
    Finding,
    FindingKind,
    HookFindingsError,
    HookReport,
    check_hook,
    check_hook_async,
)
from agentflow.testing.clock import VirtualClockLoop, run_virtual
from agentflow.testing.scripted import Line, ScriptedModel
from agentflow.testing.verify import Probe, Verifier, verify

__all__ = [
    "Finding",
    "FindingKind",
    "HookFindingsError",
    "HookReport",
    "Line",
    "Probe",
    "ScriptedModel",
    "Verifier",
    "VirtualClockLoop",
    "check_hook",
    "check_hook_async",
    "run_virtual",
    "verify",
]
