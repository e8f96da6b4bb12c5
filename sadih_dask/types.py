"""Names of the array types that the package passes around, and words that choose variants."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bytes: TypeAlias = NDArray[np.uint8]
Array: TypeAlias = NDArray[Any]

BitOrder: TypeAlias = Literal["little", "big"]
Compression: TypeAlias = Literal["none", "zstd"]
FloatType: TypeAlias = Literal["float16", "float32", "float64"]
IndexKind: TypeAlias = Literal["flat", "ivf", "multihash"]
Unlabelled: TypeAlias = Literal["error", "drop"]
EncoderKind: TypeAlias = Literal["posterior", "discriminant", "ridge", "orthogonal", "lemma"]
Loss: TypeAlias = Literal["l21", "l1"]
SimilarityKind: TypeAlias = Literal["shared-label", "cosine"]
SolverKind: TypeAlias = Literal["exact", "paper"]
StartKind: TypeAlias = Literal["separated", "nested", "random"]
