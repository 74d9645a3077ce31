"""What a run has written down of itself: the form of a run log, and how it is read."""

from agentflow.runlog.entries import FORM, VERSION, Entry
from agentflow.runlog.log import RunLog
from agentflow.runlog.reading import RunLogError, load, read_lines
from agentflow.runlog.schema import json_schema

__all__ = ["FORM", "VERSION", "Entry", "RunLog", "RunLogError", "json_schema", "load", "read_lines"]
