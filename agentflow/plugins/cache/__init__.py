"""`ToolCache` and `ModelCache`: repeated calls are answered from memory or disk.

Rules:

1. A hit replaces the work in `around`, after the whole chain: approvals and guards have already evaluated the call. (A hook
   could also return `Answer` for the Pre event, but this would skip the guards after it, and would turn a model's reply into
   one chunk.)
2. Only successful work is kept: no errors, no denied or suspended results, no replies that are empty or incomplete.
3. If the storage fails (a full disk, a locked file), the failure is logged, and the call runs without the cache.
4. Times use the run's clock. One cache serves any number of agents, event loops and threads; with `path`, also processes.

In memory, values are kept unchanged, since they are immutable. On disk they are rows of JSON in one SQLite table, using
Python's `sqlite3`: diskcache would be the usual choice, but has had no release since 2023 and reads pickles by default, so
anyone who can write to the file could run code.
"""

from agentflow.plugins.cache.model import ModelCache
from agentflow.plugins.cache.storage import CacheUse
from agentflow.plugins.cache.tool import ToolCache

__all__ = ["CacheUse", "ModelCache", "ToolCache"]
