"""The words that choose between variants; nothing is imported here, so that they cost nothing."""

from __future__ import annotations

from typing import Literal, TypeAlias

EncoderKind: TypeAlias = Literal["posterior", "ridge", "orthogonal", "lemma"]
Loss: TypeAlias = Literal["l21", "l1"]
SimilarityKind: TypeAlias = Literal["shared-label", "cosine"]
SolverKind: TypeAlias = Literal["exact", "paper"]
StartKind: TypeAlias = Literal["separated", "random"]
