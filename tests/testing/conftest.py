"""Makes the planted hooks importable, and the fixture available without an installation."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
