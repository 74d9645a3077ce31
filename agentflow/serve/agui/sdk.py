"""The only module that imports the official package of AG-UI, with an error if it is missing."""

from __future__ import annotations

try:
    from ag_ui import core
    from ag_ui.encoder import EventEncoder
except ImportError as error:
    raise ImportError(
        "The AG-UI route needs the package of the protocol: pip install 'agentflow-hooks[ag-ui]'"
    ) from error

__all__ = ["EventEncoder", "core"]
