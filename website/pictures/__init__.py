"""The pictures of the documentation, drawn from tables of the source: `python -m website.pictures` writes `docs/pictures/`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from website.pictures import call, path, race, scopes, states, story, together
from website.pictures.svg import Picture

__all__ = ["PICTURES"]

PICTURES: Final[dict[str, Callable[[], Picture]]] = {
    "call": call.draw,
    "states": states.draw,
    "scopes": scopes.draw,
    "story": story.draw,
    "path": path.draw,
    "together": together.draw,
    "race_round": race.round_,
    "race_http": race.http,
}
"""Each picture by the name of its file."""
