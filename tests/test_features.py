"""The page of features is true: each has a page and a test, and the table is the list's."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from website import features


def test_the_table_is_drawn_from_the_list() -> None:
    """`python -m website.features` writes the page's table."""
    page = features.PAGE.read_text("utf-8")
    assert features.with_table(page) == page
    with pytest.raises(ValueError, match="has no block"):
        features.with_table("# A page without one")


def test_each_feature_has_a_page_and_a_test() -> None:
    """No page and no function of a test is missing; no feature is listed twice; at least 55 are there."""
    missing: list[str] = []
    for feature, page, test in features.present():
        file, _, name = test.partition("::")
        path = features.ROOT / "tests" / file
        if not (features.ROOT / "docs" / page).is_file():
            missing.append(f"{feature}: {page}")
        if not path.is_file() or not re.search(rf"def test_{name}\(", path.read_text("utf-8")):
            missing.append(f"{feature}: {test}")
    names = [row[0] for _, rows in features.groups() for row in rows]
    assert (missing, [name for name, times in Counter(names).items() if times > 1]) == ([], [])
    assert len(features.present()) >= 55
