"""The detectors of `Redaction`: the class, and the default ones.

`python-stdnum` verifies check digits.
"""

from __future__ import annotations

import base64
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from agentflow.errors import UsageError

try:
    import regex
    from stdnum import iban, luhn
    from stdnum.us import ssn
except ImportError as error:
    raise ImportError('Redaction needs regex and python-stdnum: pip install "agentflow-hooks[redaction]"') from error

# None of these libraries has types.
_regex: Any = regex
_is_iban: Callable[[str], bool] = iban.is_valid
_is_luhn: Callable[[str], bool] = luhn.is_valid
_is_ssn: Callable[[str], bool] = ssn.is_valid


class Match(Protocol):
    """A match of a pattern."""

    def groupdict(self) -> Mapping[str, str | None]: ...
    def start(self) -> int: ...
    def end(self) -> int: ...
    def group(self) -> str: ...


class Pattern(Protocol):
    """A compiled regular expression of the `regex` module."""

    def search(self, string: str, pos: int = 0, *, partial: bool = False) -> Match | None: ...


def compiled(pattern: str) -> Pattern:
    """Compile a regular expression of the `regex` module."""
    return _regex.compile(pattern, _regex.V1)


@dataclass(frozen=True, slots=True)
class Detector:
    """A kind of data to find.

    Args:
        kind: The name of the kind in placeholders: `<kind-1>`; lower-case letters, digits and underscores.
        pattern: A regular expression of the `regex` module. Limit its repetitions (`{1,64}`), and its lookbehinds
            to 80 characters. In a lookbehind of variable length, write letters as `[kK][eE][yY]`; otherwise streamed text
            is held back too long. Refer back to groups by name: numbers change when patterns are combined.
        check: Verifies a match, for example its check digits. Returns how many characters of the match, from its start, are
            the value; after 0, the search continues at the second character of the match.
        hint: A cheap regular expression of the `re` module that matches in every text in which the pattern matches. If it
            does not match in a complete text, the pattern is not tried, which is ten times faster. (Write `aa`, which `re`
            finds twice as fast as `a{2}`.) Empty: no hint.
        needles: Cheaper still: lower-case texts; every text that the pattern matches contains one of them, in any case.
            Without a hint and needles, each text is searched.
        starts: Lower-case texts: each match begins with one, in any case, at the start of a word. If no word begins with
            one, the pattern is not tried, not even while text streams.

    Example:
        >>> Detector("badge", r"B-\\d{6}").kind
        'badge'
    """

    kind: str
    pattern: str
    check: Callable[[str], int] | None = None
    hint: str = ""
    needles: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if any(not needle or needle != needle.lower() for needle in (*self.needles, *self.starts)):
            raise UsageError(
                f"Detector {self.kind!r}: needles={self.needles!r:.200} and starts={self.starts!r:.200} must be lower-case "
                "texts, none of them empty."
            )
        if not _regex.fullmatch(r"[a-z][a-z0-9_]{0,30}", self.kind):
            raise UsageError(
                f"Detector kind={self.kind!r}: use lower-case letters, digits and underscores, a letter first, since it "
                f"becomes the placeholder <{self.kind}-1>."
            )
        try:
            found = compiled(self.pattern).search("")
        except Exception as error:
            raise UsageError(f"Detector {self.kind!r}: its pattern cannot be compiled: {error}") from error
        if found is not None:
            raise UsageError(f"Detector {self.kind!r}: its pattern matches the empty text. Make it match something.")


def _longest(text: str, borders: str, valid: Callable[[str], bool]) -> int:
    """Return the length of the longest valid beginning of `text` that ends before a border or at the end."""
    for end in range(len(text), 0, -1):
        if (end == len(text) or text[end] in borders) and text[end - 1] not in borders and valid(text[:end]):
            return end
    return 0


def _is_card(text: str) -> bool:
    digits = text.replace(" ", "").replace("-", "")
    return 13 <= len(digits) <= 19 and len(set(digits)) > 1 and _is_luhn(digits)  # zeros alone have a valid check digit


def _card(text: str) -> int:
    return _longest(text, " -", _is_card)


def _iban_check(text: str) -> int:
    return _longest(text, " ", _is_iban)


def _ssn_check(text: str) -> int:
    return len(text) if _is_ssn(text) else 0


def _basic(text: str) -> int:
    """Verify `user:password` in base64."""
    try:
        user, colon, _ = base64.b64decode(text, validate=True).decode().partition(":")
    except ValueError:
        return 0
    return len(text) if colon and user.isprintable() else 0


class SecretRule(NamedTuple):
    """The form of one service's secrets.

    Attributes:
        id: The service's name, such as `"github-pat"`.
        pattern: A regular expression of the token alone; it begins at the start of a word.
        needles: Lower-case texts; each token contains one of them, in any case.
        starts: Whether each token begins with a needle.
    """

    id: str
    pattern: str
    needles: tuple[str, ...]
    starts: bool = True


_GITLAB = ("pat", "dt", "rt", "cbt", "ptt", "ft", "ffct", "imt", "agent", "oas", "soat")
_OWN_RULES = (
    # These rules are wider than those of gitleaks: tokens of more services, and newer lengths.
    SecretRule("secret-key", r"[sr]k[-_][A-Za-z0-9_-]{16,256}", ("sk-", "sk_", "rk-", "rk_")),
    SecretRule("github-token", r"gh[pousr]_[A-Za-z0-9]{20,255}", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_")),
    SecretRule("github-fine-grained-pat", r"github_pat_\w{20,255}", ("github_pat_",)),
    SecretRule("gitlab-token", rf"gl(?:{'|'.join(_GITLAB)})-[\w-]{{20,64}}", tuple(f"gl{kind}-" for kind in _GITLAB)),
    SecretRule("slack-token", r"xox[abeprs]-[\w-]{10,256}", ("xox",)),
    SecretRule("aws-access-key-id", r"A[KS]IA[0-9A-Z]{16}", ("akia", "asia")),
    SecretRule("age-key", r"AGE-SECRET-KEY-1[0-9A-Z]{58}", ("age-secret-key-1",)),
    SecretRule("huggingface-token", r"hf_[A-Za-z0-9]{30,64}", ("hf_",)),
    SecretRule("pypi-token", r"pypi-[\w-]{50,256}", ("pypi-",)),
    SecretRule("sendgrid-api-key", r"SG\.[\w-]{16,64}\.[\w-]{16,64}", ("sg.",)),
    SecretRule("notion-token", r"ntn_[A-Za-z0-9]{40,64}", ("ntn_",)),
    SecretRule("sentry-token", r"sntry[su]_[\w+/=-]{30,400}", ("sntrys_", "sntryu_")),
    SecretRule("flyio-token", r"fm(?:1[ar]|2)_[A-Za-z0-9+/]{50,400}={0,3}", ("fm1a_", "fm1r_", "fm2_")),
    SecretRule("json-web-token", r"eyJ[\w-]{8,2048}\.[\w-]{8,4096}(?:\.[\w-]{0,2048})?", ("eyj",)),
    # These are missing from gitleaks' rules; they follow the vendors' documentation.
    SecretRule("atlassian-api-token", r"ATATT3[\w=-]{100,300}", ("atatt3",)),
    SecretRule("discord-bot-token", r"[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,40}", (".",), False),
    SecretRule("docker-token", r"dckr_(?:pat|oat)_[\w-]{20,60}", ("dckr_",)),
    SecretRule("figma-token", r"figd_[\w-]{20,80}", ("figd_",)),
    SecretRule("fireworks-api-key", r"fw_[A-Za-z0-9]{20,48}", ("fw_",)),
    SecretRule("google-oauth-access-token", r"ya29\.[\w-]{20,400}", ("ya29.",)),
    SecretRule("google-oauth-client-secret", r"GOCSPX-[\w-]{20,48}", ("gocspx-",)),
    SecretRule("google-oauth-refresh-token", r"1//0[\w-]{30,200}", ("1//0",)),
    SecretRule("groq-api-key", r"gsk_[A-Za-z0-9]{40,64}", ("gsk_",)),
    SecretRule("langsmith-api-key", r"lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{6,16}", ("lsv2_",)),
    SecretRule("notion-token-old", r"secret_[A-Za-z0-9]{43}", ("secret_",)),
    SecretRule("nvidia-api-key", r"nvapi-[\w-]{40,100}", ("nvapi-",)),
    SecretRule("pinecone-api-key", r"pcsk_\w{40,100}", ("pcsk_",)),
    SecretRule("replicate-api-token", r"r8_[A-Za-z0-9]{30,50}", ("r8_",)),
    SecretRule("stripe-webhook-secret", r"whsec_[A-Za-z0-9+/]{24,64}", ("whsec_",)),
    SecretRule("supabase-access-token", r"sbp_[0-9a-f]{40}", ("sbp_",)),
    SecretRule("tavily-api-key", r"tvly-[\w-]{20,80}", ("tvly-",)),
    SecretRule("twilio-account-sid", r"AC[0-9a-f]{32}", ("ac",)),
    SecretRule("vercel-token", r"vc[kp]_[A-Za-z0-9]{40,80}", ("vcp_", "vck_")),
    SecretRule("xai-api-key", r"xai-[A-Za-z0-9]{60,100}", ("xai-",)),
)


def _gitleaks_rules() -> tuple[str, tuple[SecretRule, ...]]:
    data = tomllib.loads(Path(__file__).with_name("secret_rules.toml").read_text(encoding="utf-8"))
    rules = [SecretRule(rule["id"], rule["pattern"], tuple(rule["needles"]), rule["starts"]) for rule in data["rules"]]
    return f"{data['source']['name']}, {data['source']['version']}", tuple(rules)


RULES_SOURCE, _GITLEAKS_RULES = _gitleaks_rules()
"""The source of most rules; `secret_rules.toml` contains them, with their licence."""
SECRET_RULES: tuple[SecretRule, ...] = (*_GITLEAKS_RULES, *_OWN_RULES)
"""The services with secrets that are recognised by their form."""


def _keys(*, starts: bool) -> Detector:
    """Create one detector for many rules, grouped by first letter, so that one letter rules out most positions."""
    rules = [rule for rule in SECRET_RULES if rule.starts == starts]
    by_letter: dict[str, list[str]] = defaultdict(list)
    for rule in rules:
        by_letter["".join(sorted({needle[0] for needle in rule.needles})) if starts else ""].append(
            f"(?:{rule.pattern})"
        )
    anywhere = by_letter.pop("", [])
    groups = [f"(?=[{letters}{letters.upper()}])(?:{'|'.join(some)})" for letters, some in sorted(by_letter.items())]
    needles = tuple(dict.fromkeys(needle for rule in rules for needle in rule.needles))
    return Detector(
        "secret",
        # The last part also hides the rest of a token that is longer than its rule allows.
        rf"(?<![A-Za-z0-9])(?:{'|'.join([*groups, *anywhere])})[A-Za-z0-9_]{{0,200}}",
        hint=r"[\w+/=.~-]{15}",
        needles=needles,
        starts=needles if starts else (),
    )


def _any_case(names: str) -> str:
    """Return a case-insensitive pattern for names in a lookbehind.

    It consists of character sets, because with plain letters there `regex` reports a partial match in any text.
    """
    spelled = re.sub("[a-z]", lambda letter: f"[{letter[0]}{letter[0].upper()}]", names)
    return "|".join(word.replace("_", "[ _-]?") for word in spelled.split())


_ASSIGNED = _any_case(
    "password passwd pwd passphrase token credential credentials secret secret_key secret_access_key api_key access_key "
    "account_key"
)
_SPACE = r"[\s\u200b-\u200d\u2060\ufeff]{0,3}"
"""The space between a name and its value, including invisible characters."""

SECRETS: tuple[Detector, ...] = (
    Detector(
        "secret",
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[\s\S]*?"
        # a key without an end is hidden to the end of the text
        r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
        needles=("-----begin",),
    ),
    _keys(starts=True),
    _keys(starts=False),
    Detector(  # the second half of an AWS access key has no form of its own
        "secret",
        r"""(?<=A[KS]IA[0-9A-Z]{16}["']?[\s:,/]{1,3}["']?)[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])""",
        hint="A[KS]IA[0-9A-Z]{16}",
        needles=("akia", "asia"),
    ),
    Detector("secret", rf"(?<={_any_case('bearer')} {{1,3}})[\w.~+/-]{{16,4096}}", needles=("bearer ",)),
    Detector(
        "secret", rf"(?<={_any_case('basic')} {{1,3}})[A-Za-z0-9+/]{{4,4096}}={{0,2}}", _basic, needles=("basic ",)
    ),
    Detector(
        "secret",
        # `/{2}` for the same reason as in `_any_case`.
        r"""(?<=[A-Za-z][A-Za-z0-9+.-]{0,14}:/{2}[^\s/@:?#"'<>]{0,58}:)[^\s/?#"'<>]{1,256}(?=@)""",
        hint=r"""://[^\s/?#"'<>]{1,400}@""",
        needles=("://",),
    ),
    Detector(
        "secret",
        rf"""(?<=(?:{_ASSIGNED}|(?<![A-Za-z]){_any_case("pass")})["']?{_SPACE}[=:]{_SPACE}["']?)"""
        r"""(?=[^\s"'<>,;]{0,200}\d)[^\s"'<>,;]{6,200}""",
        hint="[=:]",
        needles=("pass", "pwd", "secret", "key", "token", "credential"),
    ),
    Detector(  # a value without a digit needs upper and lower case mixed, unlike a word
        "secret",
        rf"""(?<=(?:{_any_case("password passwd pwd passphrase")})["']?{_SPACE}[=:]{_SPACE}["']?)"""
        r"""(?=[^\s"'<>,;]{0,200}[a-z][A-Z])(?=[^\s"'<>,;]{0,200}[A-Z][a-z])[^\s"'<>,;(]{12,200}""",
        hint="[=:]",
        needles=("pass", "pwd"),
    ),
)
"""Private keys, the key formats of well-known services, AWS secret keys after their access key, bearer tokens, basic
authorization, passwords in URLs, and values assigned to a password or a similar name."""

EMAIL = Detector("email", r"(?<![\w.+%-])[\w.+%-]{1,64}@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}(?![\w-])", needles=("@",))
"""Mail addresses."""

CARD = Detector("card", r"(?<!\d)\d(?:[ -]?\d){12,18}(?!\d)", _card, r"\d" + r"[ -]?\d" * 6)
"""Payment card numbers with a valid check digit."""

IBAN = Detector(
    "iban", r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}(?![A-Za-z0-9])", _iban_check, r"[A-Z][A-Z]\d\d"
)
"""International bank account numbers with valid check digits."""

SSN = Detector("ssn", r"(?<![\d-])\d{3}-\d{2}-\d{4}(?![\d-])", _ssn_check, r"\d\d\d-\d\d-")
"""Social security numbers of the United States."""

DETECTORS: tuple[Detector, ...] = (*SECRETS, EMAIL, IBAN, CARD, SSN)
"""The default detectors."""
