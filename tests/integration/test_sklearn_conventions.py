"""SADIH among scikit-learn's tools."""

import numpy as np
from sklearn.utils.estimator_checks import parametrize_with_checks

from sadih_dask import SADIH


@parametrize_with_checks([SADIH(n_bits=16, max_iter=3, n_init=2), SADIH(n_bits=16, anchors=None)])
def test_estimator_checks(estimator, check):
    check(estimator)
