"""The testing kit: scripted models, step-by-step verification, virtual time, and conformance suites for hooks, stores,
memories, indexes, models.

`agentflow.testing.wire` contains servers that check requests as strictly as the providers do.
"""

from typing import TYPE_CHECKING

from agentflow._support.lazy import lazily
from agentflow._support.virtual_time import VirtualClockLoop, run_virtual
from agentflow.testing.check_hook import check_hook, check_hook_async
from agentflow.testing.check_index import IndexFlaw, IndexReport, check_index, check_index_async
from agentflow.testing.check_memory import MemoryFlaw, MemoryReport, check_memory, check_memory_async
from agentflow.testing.check_model import ModelFlaw, ModelReport, check_model, check_model_async
from agentflow.testing.check_store import StoreFlaw, StoreReport, check_store, check_store_async
from agentflow.testing.embedding import TermEmbedder
from agentflow.testing.findings import Finding, FindingsError
from agentflow.testing.fire import FireResult, fire, run_context
from agentflow.testing.hook_checks.report import FindingKind, HookReport
from agentflow.testing.model_scenes import ModelScene, StagedModel
from agentflow.testing.scripted import Line, ScriptedModel
from agentflow.testing.verify import Probe, Verifier, verify

if TYPE_CHECKING:
    from agentflow.testing.evaluation import Case, Check, Evaluation, Judge, Trial, evaluate
    from agentflow.testing.replaying import RunChangedError, assert_replays

__all__ = [
    "Case",
    "Check",
    "Evaluation",
    "Finding",
    "FindingKind",
    "FindingsError",
    "FireResult",
    "HookReport",
    "IndexFlaw",
    "IndexReport",
    "Judge",
    "Line",
    "MemoryFlaw",
    "MemoryReport",
    "ModelFlaw",
    "ModelReport",
    "ModelScene",
    "Probe",
    "RunChangedError",
    "ScriptedModel",
    "StagedModel",
    "StoreFlaw",
    "StoreReport",
    "TermEmbedder",
    "Trial",
    "Verifier",
    "VirtualClockLoop",
    "assert_replays",
    "check_hook",
    "check_hook_async",
    "check_index",
    "check_index_async",
    "check_memory",
    "check_memory_async",
    "check_model",
    "check_model_async",
    "check_store",
    "check_store_async",
    "evaluate",
    "fire",
    "run_context",
    "run_virtual",
    "verify",
]

__getattr__, __dir__ = lazily(
    __name__,
    {".evaluation": "Case Check Evaluation Judge Trial evaluate", ".replaying": "RunChangedError assert_replays"},
)
