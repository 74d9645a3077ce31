"""AG-UI, the protocol between agents and pages (`docs/serve-ui-protocols.md`). Needs the extra `ag-ui`."""

from typing import TYPE_CHECKING

from agentflow._support.lazy import lazily

if TYPE_CHECKING:
    from agentflow.serve.agui.input import PageInput, request_of
    from agentflow.serve.agui.output import PageStream

__all__ = ["PageInput", "PageStream", "request_of"]

__getattr__, __dir__ = lazily(__name__, {".input": "PageInput request_of", ".output": "PageStream"})
