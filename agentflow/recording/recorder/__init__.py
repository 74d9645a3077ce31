"""`Recorder`: writes the log of a run while it is in progress (`docs/plugins/recorder.md`)."""

from agentflow.recording.recorder.export import export_log
from agentflow.recording.recorder.hook import Recorder
from agentflow.recording.recorder.records import Explanation, Recording

__all__ = ["Explanation", "Recorder", "Recording", "export_log"]
