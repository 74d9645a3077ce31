"""Draw all pictures again."""

from __future__ import annotations

from pathlib import Path

from website.pictures import PICTURES

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), "utf-8")
        print(f"docs/pictures/{name}.svg")
