"""How tests call the command line."""

from collections.abc import Callable

Here = Callable[..., tuple[str, str]]
"""What the fixture `here` gives: run a command in this process; return its stdout and stderr."""
