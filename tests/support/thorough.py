"""How much the tests try: everything where the environment names a CI, as `.ci/run` does; else a part of what takes long."""

import os

__all__ = ["THOROUGH"]

THOROUGH = bool(os.environ.get("CI"))
