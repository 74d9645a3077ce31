"""Verdicts as people type them: each can be given at a pause, whatever it carries."""

from typing import Any, get_args

import pytest

from agentflow.errors import UsageError
from agentflow.plugins.debugger.deciding import VERDICTS, form_of, parse_verdict
from agentflow.testing.store_checks.samples import VERDICTS as SAMPLES
from agentflow.vocabulary.verdicts import Again, Answer, Deny, Recover, Stop, Suspend, Verdict


def test_no_verdict_is_missing() -> None:
    """Neither at the terminal and on the page, nor among the values with which stores are tested."""
    kinds = set(get_args(Verdict))
    assert set(VERDICTS.values()) == kinds <= {type(sample) for sample in SAMPLES}


@pytest.mark.parametrize(
    ("kind", "form", "text", "made"),
    [
        (Deny, "deny [REASON]", '{"a"', Deny('{"a"')),
        (Deny, "deny [REASON]", "", Deny()),
        (Answer, "answer VALUE", '{"a": 1}', Answer({"a": 1})),
        (Answer, "answer VALUE", "0", Answer(0)),
        (Again, "again TEXT", "7", Again("7")),
        (Stop, "stop [REASON]", "", Stop()),
        (Suspend, "suspend [REQUEST]", "who pays?", Suspend("who pays?")),
        (Recover, "recover VALUE", "null", Recover(None)),
    ],
)
def test_what_is_typed_becomes_what_it_carries(kind: Any, form: str, text: str, made: Verdict) -> None:
    """Words are words; other values are JSON, or a text."""
    assert (form_of(kind), parse_verdict(kind, text)) == (form, made)


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (Again, " ", "Again needs a value."),
        (Recover, "", "Recover needs a value."),
        (Answer, '{"a"', "This looks like JSON but is not valid"),
    ],
)
def test_what_cannot_be_meant_is_refused(kind: Any, text: str, said: str) -> None:
    """The error names the missing part."""
    with pytest.raises(UsageError, match=said):
        parse_verdict(kind, text)
