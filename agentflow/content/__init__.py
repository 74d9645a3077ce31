"""Content from addresses: `fetch` downloads it into a `DataBlock`. See `docs/content.md`."""

from agentflow.content.fetching import fetch

__all__ = ["fetch"]
