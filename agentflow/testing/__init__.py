"""The testing kit: scripted models, step-by-step verification, virtual time, and suites for who writes hooks, stores, models.

`agentflow.testing.wire` has strict servers.
"""

from agentflow.testing.check_hook import FindingKind, HookReport, check_hook, check_hook_async
from agentflow.testing.check_model import ModelFlaw, ModelReport, check_model, check_model_async
from agentflow.testing.check_store import StoreFlaw, StoreReport, check_store, check_store_async
from agentflow.testing.clock import VirtualClockLoop, run_virtual
from agentflow.testing.findings import Finding, FindingsError
from agentflow.testing.fire import Fired, fire, run_context
from agentflow.testing.model_scenes import ModelScene, Staged
from agentflow.testing.scripted import Line, ScriptedModel
from agentflow.testing.verify import Probe, Verifier, verify

__all__ = [
    "Finding",
    "FindingKind",
    "FindingsError",
    "Fired",
    "HookReport",
    "Line",
    "ModelFlaw",
    "ModelReport",
    "ModelScene",
    "Probe",
    "ScriptedModel",
    "Staged",
    "StoreFlaw",
    "StoreReport",
    "Verifier",
    "VirtualClockLoop",
    "check_hook",
    "check_hook_async",
    "check_model",
    "check_model_async",
    "check_store",
    "check_store_async",
    "fire",
    "run_context",
    "run_virtual",
    "verify",
]
