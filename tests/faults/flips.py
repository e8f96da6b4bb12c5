"""Flip, truncate or delete any file that is written, at random places.

    python -m tests.faults.flips [--trials 2000] [--seed 20]

Each trial damages one file and looks at it in both ways: by reading it as a caller does, and by
``sadih verify``. What must hold: nothing that was not written ever comes out; reading or verifying
says that something is wrong, and names the file, for chunks also the array and the chunk.

Left out, as nothing that is in them is ever read: files that a killed writer left half-written
(``.tmp``), and those whose locks order writers (``.swap``), which are empty. A model file is a zip
file: dates, attributes and version numbers in its headers carry nothing. A flip there counts as
harmless only if the model that is loaded saves as the bytes of the intact file.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Literal
from unittest.mock import patch

from sadih_dask.errors import SadihError
from tests.faults.commands import CommandFailed
from tests.faults.damage import Damage
from tests.faults.specimens import Specimen, all_specimens
from tests.faults.table import Outcome, main

Seen = Literal["read", "verify", "harmless", "healed"]


def run(folder: Path, trials: int, seed: int) -> Outcome:
    """Damage files at random; every kind of file as often as any other."""
    outcome = Outcome("flipped, truncated or deleted files")
    rng = random.Random(seed)
    seen: Counter[Seen] = Counter()
    with patch("os.fsync"):  # what survives a power cut cannot be observed here
        specimens = all_specimens(folder)
        expected = {specimen.name: specimen.read() for specimen in specimens}
        for trial in range(trials):
            specimen = specimens[trial % len(specimens)]
            damage = Damage.draw(rng.choice(specimen.files), rng)
            outcome.trials += 1
            try:
                with damage.done():
                    seen[look(specimen, damage, expected[specimen.name])] += 1
            except AssertionError as error:
                outcome.failures.append(f"{specimen.name}: {damage}: {error}")
    detected = seen["read"] + seen["verify"]
    outcome.figures = {
        "kinds of files": f"{len(specimens)}",
        "detected by reading": f"{seen['read']:,}",
        "by verifying only": f"{seen['verify']:,}",
        "written again": f"{seen['healed']:,}",
        "bits that carry nothing": f"{seen['harmless']:,}",
        "wrong data": f"{trials - detected - seen['healed'] - seen['harmless']:,}",
    }
    return outcome


def look(specimen: Specimen, damage: Damage, expected: str) -> Seen:
    """Look at a damaged file in both ways and say which of them has noticed."""
    by_verifying = _verify(specimen, damage)
    try:
        found = specimen.read()
    except (SadihError, FileNotFoundError) as error:
        _check_words(str(error), specimen, damage)
        if specimen.verify is not None:
            assert by_verifying, "reading found it and verifying did not"
        return "read"
    assert found == expected, "other data than were written came out, silently"
    if by_verifying:
        return "verify"
    if specimen.verify is None:
        return "healed"
    assert specimen.slack, "nothing has noticed"
    return "harmless"


def _verify(specimen: Specimen, damage: Damage) -> bool:
    if specimen.verify is None:
        return False
    try:
        specimen.verify()
    except CommandFailed as failure:
        code, said = failure.code, str(failure)
    else:
        return False
    assert code == 1, f"exit code {code}"
    _check_words(said, specimen, damage)
    return True


def _check_words(text: str, specimen: Specimen, damage: Damage) -> None:
    missing = [word for word in specimen.named(damage.file) if word not in text]
    assert not missing, f"the error does not name {missing}: {text[:300]}"


if __name__ == "__main__":
    main(run, trials=2000)
