"""Keeping secrets out of logs, records, errors and reports.

Text is searched for what secrets look like: passwords and query strings in URLs, values whose name
says that they are secret, headers, keys and tokens of known forms. It is a last net, not a licence
to pass secrets around: a bare password in a sentence cannot be told from a word.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"

_SENSITIVE = (
    r"(?:secret|passw(?:or)?d|passphrase|token|credential|signature|cookie|connection[_-]?string|"
    r"(?:api|access|private|account|storage|shared|encryption|signing)[_-]?key)"
)
_NAME = rf"[\w.-]{{0,80}}?{_SENSITIVE}[\w.-]{{0,80}}"
_VALUE = r"""(?:"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?|[^\s,;&'"}\])]+)"""
_URL = re.compile(r"\b([a-z][a-z0-9+.-]{0,30}://)([^\s'\"<>]+)", re.IGNORECASE)

_PATTERNS = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), kept)
    for pattern, kept in (
        # The PEM block of a key, or its beginning where the text was cut.
        (r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]{0,40}-----|\Z)", ""),
        (r"(\bauthorization['\"]?\s*[:=]\s*)[^\n,;}]+", r"\1***"),
        (r"\b(basic|bearer)\s+[\w+/=.~-]{16,}", r"\1 ***"),
        (rf"(?<![\w.-])(['\"]?{_NAME}['\"]?\s*(?>=>|[:=])\s*+)(?!\*\*\*)b?{_VALUE}", r"\1***"),
        (rf"(?<!\S)(--{_NAME}\s++)(?!-|\*\*\*){_VALUE}", r"\1***"),
        # What is secret wherever it stands: ids of AWS, JSON web tokens, tokens with a prefix.
        (r"\b(?:AKIA|ASIA)[0-9A-Z]{12,}\b", ""),
        (r"\beyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]*", ""),
        (r"\b(?:gh[pousr]_|github_pat_|glpat-|hf_|xox[abprs]-)[\w-]{10,}", ""),
    )
)
_SECRET_FIELD = re.compile(rf"(?:key|.*{_SENSITIVE}.*|authorization)", re.IGNORECASE | re.DOTALL)


def redact(text: str) -> str:
    """The text without what looks like a secret.

    >>> redact("cannot read s3://me:pass@host/bucket/x?X-Amz-Signature=abc")
    'cannot read s3://***@host/bucket/x?***'
    >>> redact("{'secret': 'abc', 'anon': False}")
    "{'secret': ***, 'anon': False}"
    """
    text = _URL.sub(lambda url: url[1] + _without_secrets(url[2]), text)
    for pattern, kept in _PATTERNS:
        text = pattern.sub(kept or HIDDEN, text)
    return text


def _without_secrets(rest: str) -> str:
    """What follows the protocol of a URL, without user, password, query and assigning fragment."""
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    _, colon, port = authority.rpartition(":")
    if "@" in authority:
        rest = f"{HIDDEN}@{rest[authority.rindex('@') + 1 :]}"
    elif colon and not port.isdecimal() and "@" in rest:  # a password with / or ? in it
        rest = f"{HIDDEN}@{rest.rpartition('@')[2]}"
    address, hash_sign, fragment = rest.partition("#")
    path, question_mark, _ = address.partition("?")
    if question_mark:
        address = f"{path}?{HIDDEN}"
    return address + hash_sign + (HIDDEN if "=" in fragment else fragment)


def redact_values(value: Any) -> Any:
    """A copy of settings (mappings, lists and plain values) without secrets.

    Here a field is known by its name alone; ``key``, as S3 storage options call half of a
    credential, is one.

    >>> redact_values({"key": "me", "client_kwargs": {"endpoint_url": "https://u:p@host"}})
    {'key': '***', 'client_kwargs': {'endpoint_url': 'https://***@host'}}
    """
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {
            name: HIDDEN
            if _SECRET_FIELD.fullmatch(str(name)) and not isinstance(inner, bool | None)
            else redact_values(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact_values(inner) for inner in value]
    return value


class RedactingFilter(logging.Filter):
    """Takes secrets out of everything that its handler writes, tracebacks included."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrite a record; all of them pass."""
        record.msg, record.args = redact(record.getMessage()), None
        if record.exc_info:
            record.exc_text = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            record.exc_info = None
        if record.exc_text:
            record.exc_text = redact(record.exc_text)
        if record.stack_info:
            record.stack_info = redact(record.stack_info)
        return True
