"""What all tests of stores need."""

import pytest


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the disk: that bytes survive a power cut cannot be observed here."""
    monkeypatch.setattr("os.fsync", lambda _: None)
