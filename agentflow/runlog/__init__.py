"""Run logs: their format, the reader, and views of their content."""

from agentflow.runlog.entries import FORM, VERSION, Entry
from agentflow.runlog.log import RunLog
from agentflow.runlog.reading import RunLogError, load, read_lines
from agentflow.runlog.schema import json_schema

__all__ = ["FORM", "VERSION", "Entry", "RunLog", "RunLogError", "json_schema", "load", "read_lines"]
