"""Where tasks run: threads or processes of this machine, or a cluster, over connections one trusts.

Nothing here is needed to use this package with a Dask client of one's own.
"""

from sadih_dask.cluster.settings import ClusterSettings, Kubernetes, Slurm, Tls
from sadih_dask.cluster.start import Place, running

__all__ = ["ClusterSettings", "Kubernetes", "Place", "Slurm", "Tls", "running"]
