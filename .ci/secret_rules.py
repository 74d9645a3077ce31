"""Makes `agentflow/plugins/redaction/secret_rules.toml` of gitleaks' list: `python .ci/secret_rules.py gitleaks.toml VERSION`.

Taken over are the rules for tokens that can be told by their own form: most begin with letters of their service, such as
`ghp_`. What gitleaks tells by the name that it is assigned to is found by `Redaction`'s own rule for assignments.
"""

from __future__ import annotations

import json
import re
import re._parser as parser
import sys
import tomllib
from pathlib import Path
from typing import Any

HEAD = """\
# Forms of secrets, made by .ci/secret_rules.py of gitleaks' list of rules (config/gitleaks.toml, {version}),
# https://github.com/gitleaks/gitleaks, changed for a search in running text: what stands around a token is not part of a
# pattern, and each repetition is bounded.
#
# MIT License
#
# Copyright (c) 2019 Zachary Rice
#
# Permission is hereby granted, free of charge, to any person obtaining a copy
# of this software and associated documentation files (the "Software"), to deal
# in the Software without restriction, including without limitation the rights
# to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
# copies of the Software, and to permit persons to whom the Software is
# furnished to do so, subject to the following conditions:
#
# The above copyright notice and this permission notice shall be included in all
# copies or substantial portions of the Software.
#
# THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
# IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
# FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
# AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
# LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
# OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
# SOFTWARE.
"""

ASSIGNED = r"""[\x60'"\s=]{0,5}("""
ENDS = (r"""(?:[\x60'"\s;]|\\[nr]|$|\b)""", r"""(?:[\x60'"\s;]|\\[nr]|$)""", r"(?:[^\w-]|\z)", r"(?:[^a-zA-Z0-9+/]|\z)")
BY_THEIR_END = {
    "mailchimp-api-key": ["-us"],
    "maxmind-license-key": ["_mmk"],
    "telegram-bot-api-token": [":a"],
    "microsoft-teams-webhook": [".webhook.office.com"],
    "slack-webhook-url": ["hooks"],
}
"""They begin with any letters or digits, and are told by what follows."""
LEFT_OUT = {
    *("private-key", "curl-auth-header", "curl-auth-user", "generic-api-key", "nuget-config-password"),
    *(
        "freemius-secret-key",
        "jwt",
        "jwt-base64",
        "kubernetes-secret-yaml",
        "sidekiq-sensitive-url",
        "beamer-api-token",
    ),
}
"""`Redaction` has rules of its own for what these find, or they need what stands around."""
MOST = 400


def bounded(pattern: str) -> str:
    pattern = re.sub(r"\{(\d+),\}", rf"{{\1,{MOST}}}", pattern)
    return re.sub(r"(?<=[\])])([*+])", lambda found: f"{{{int(found[1] == '+')},{MOST // 2}}}", pattern)


def token(regex: str) -> str:
    """The pattern of the token alone."""
    any_case = regex.startswith("(?i)")
    begin = regex.index(ASSIGNED) + len(ASSIGNED) - 1 if ASSIGNED in regex else 4 if any_case else 0
    pattern = regex[begin:]
    for end in ENDS:
        pattern = pattern.removesuffix(end)
    pattern = pattern.removeprefix(r"\b").removesuffix(r"\b")
    if pattern.startswith("(") and not pattern.startswith("(?") and pattern.endswith(")"):
        pattern = pattern[1:-1]
    pattern = re.sub(r"(?<!\\)\((?!\?)", "(?:", bounded(pattern))
    pattern = re.sub(r"\\d\+", r"\\d{1,20}", pattern)
    pattern = pattern.replace(r"(?:hvs\.[\w-]{90,120}|s\.(?i:[a-z0-9]{24}))", r"hvs\.[\w-]{90,120}")
    return f"(?i:{pattern})" if any_case else pattern


def beginnings(pattern: str) -> list[str]:
    """The letters that a token begins with, in small ones; what can be written in several ways gives several."""
    plain = re.sub(r"\(\?-?i\)", "", re.sub(r"\(\?-?i:", "(?:", pattern)).replace("[[:alnum:]]", "[a-z]")
    return sorted({found.lower() for found in _beginnings(parser.parse(plain))[0]})


def _beginnings(parts: Any) -> tuple[list[str], bool]:
    """All beginnings, and whether they are the whole."""
    found = [""]
    for kind, value in parts:
        match str(kind):
            case "LITERAL":
                more, whole = [chr(value)], True
            case "SUBPATTERN":
                more, whole = _beginnings(value[3])
            case "BRANCH":
                each = [_beginnings(branch) for branch in value[1]]
                more, whole = [one for some, _ in each for one in some], all(whole for _, whole in each)
            case "IN" if len(value) < 5 and all(str(part[0]) == "LITERAL" for part in value):
                more, whole = [chr(part[1]) for part in value], True
            case _:
                return found, False
        found = [before + after for before in found for after in more]
        if not whole:
            return found, False
    return found, True


def main(file: str, version: str) -> None:
    """Write the list."""
    lines = [HEAD.format(version=version), f'[source]\nname = "gitleaks"\nversion = "{version}"\n']
    for rule in tomllib.loads(Path(file).read_text())["rules"]:
        if "regex" not in rule or rule["id"] in LEFT_OUT:
            continue
        pattern = token(rule["regex"])
        needles = BY_THEIR_END.get(rule["id"]) or beginnings(pattern)
        if any(len(needle) < 2 for needle in needles):
            continue  # told by its surroundings
        if ASSIGNED in rule["regex"] and not all(re.search(r"[^a-z]|....", needle) for needle in needles):
            continue
        starts = json.dumps(rule["id"] not in BY_THEIR_END)
        lines.append(
            f"[[rules]]\nid = \"{rule['id']}\"\npattern = '''{pattern}'''\nneedles = {json.dumps(needles)}\nstarts = {starts}\n"
        )
    Path("agentflow/plugins/redaction/secret_rules.toml").write_text("\n".join(lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
