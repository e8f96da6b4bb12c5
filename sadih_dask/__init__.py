"""Learning to hash from one-pass, mergeable statistics."""

from sadih_dask.estimator import SADIH

__all__ = ["SADIH"]
__version__ = "0.1.0"
