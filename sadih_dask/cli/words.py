"""Errors speak of Python arguments; at the command line the same things are options."""

from __future__ import annotations

import re

_WORDS = (
    (r"mode='(append|overwrite)'", r"--\1"),
    (r"overwrite=True", "--overwrite"),
    (r"transpose=True", "--transpose"),
    (r"allow_unlabelled=True to keep rows that are similar to no other", "--unlabelled drop"),
    (r"labels_variable=\.\.\.", "--labels-variable NAME"),
    (r"variable=\.\.\.", "--features-variable or --labels-variable NAME"),
    (r"\b(dtype|compression)='(\w+)'", r"--\1 \2"),
    (r"\b(chunk|block)_rows=(\d+)", r"--\1-rows \2"),
    (r"\bclass_names\b", "--class-names"),
    (r"\bmax_results\b", "--max-results"),
    (r"\bhash_bits\b", "--hash-bits"),
    (r"\bn_(lists|hashes)\b", r"--\1"),
)


def in_words_of_the_command_line(text: str) -> str:
    """Put the remedies that a message names as options.

    >>> in_words_of_the_command_line("replace it with overwrite=True")
    'replace it with --overwrite'
    """
    for pattern, words in _WORDS:
        text = re.sub(pattern, words, text)
    return text
