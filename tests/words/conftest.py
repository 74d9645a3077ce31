"""Makes the tests' shared helpers importable."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))
