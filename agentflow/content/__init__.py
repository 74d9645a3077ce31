"""Content from elsewhere: `fetch` makes a `DataBlock` of an address. See `docs/content.md`."""

from agentflow.content.fetching import fetch

__all__ = ["fetch"]
