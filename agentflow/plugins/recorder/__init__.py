"""`Recorder`: writes a run log while the run runs (`docs/plugins/recorder.md`)."""

from agentflow.plugins.recorder.export import export_log
from agentflow.plugins.recorder.hook import Recorder
from agentflow.plugins.recorder.records import Explanation, Recording

__all__ = ["Explanation", "Recorder", "Recording", "export_log"]
