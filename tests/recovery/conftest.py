"""Recovery is tested on real SQLite files, in real processes, and on a real PostgreSQL server."""

import sys
from pathlib import Path

for folder in ("support", "laws"):
    sys.path.append(str(Path(__file__).parents[1] / folder))
