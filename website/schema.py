"""Write the JSON Schema of run logs to docs/run-log.schema.json: `python -m website.schema`."""

from __future__ import annotations

import json
from pathlib import Path

from agentflow.recording.schema import json_schema

SCHEMA = Path(__file__).parents[1] / "docs" / "run-log.schema.json"

if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n", "utf-8")
