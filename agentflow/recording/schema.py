"""The JSON Schema of a run log's lines, generated from the entry classes."""

from __future__ import annotations

from typing import Any

from agentflow._support.validation import adapter_of
from agentflow.recording.entries import FORM, VERSION, WrittenEntry

__all__ = ["json_schema"]


def json_schema() -> dict[str, Any]:
    """Return the schema of one line.

    Example:
        >>> json_schema()["title"]
        'agentflow.run-log 1'
    """
    schema = adapter_of(WrittenEntry).json_schema()
    for entry in schema["$defs"].values():
        # `kind` has a default in the classes, but each line states it.
        if "kind" in entry["properties"]:
            entry["required"] = ["kind", *entry.get("required", ())]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"{FORM} {VERSION}", **schema}
