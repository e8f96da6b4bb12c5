"""Where tasks run: threads or processes of this machine, or a cluster, over connections one trusts.

Nothing here is needed to use this package with a Dask client of one's own. Read `settings` first,
then `start`, `launchers`, `security` (certificates, and what is refused without them) and
`versions`.
"""

from sadih_dask.cluster.settings import ClusterSettings, Tls
from sadih_dask.cluster.start import Cluster, running

__all__ = ["Cluster", "ClusterSettings", "Tls", "running"]
