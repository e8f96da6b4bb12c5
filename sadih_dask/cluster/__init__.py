"""Where tasks run: threads or processes of this machine, or a cluster, over connections one trusts.

Read `settings` first (what one may ask for), then `start` (starting or joining it) with `launchers`
(processes, Slurm, Kubernetes) and `nanny` (workers that end and begin), `security` (certificates)
and `versions` (workers with others are named). Nothing here is needed to use this package with a
Dask client of one's own.
"""

from sadih_dask.cluster.settings import ClusterSettings, Tls
from sadih_dask.cluster.start import Cluster, running

__all__ = ["Cluster", "ClusterSettings", "Tls", "running"]
