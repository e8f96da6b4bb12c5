#!/bin/sh
# The image's words are those of `sadih`; `dask ...` runs Dask's own command instead. Dask's Helm
# chart calls it by the older names dask-scheduler and dask-worker.
set -eu
case "${1:-}" in
  dask-scheduler | dask-worker)
    role=${1#dask-}
    shift
    set -- dask "$role" "$@" ;;
  dask) ;;
  *)
    exec sadih "$@" ;;
esac
# --no-dashboard leaves pages that name every task and machine; only what health checks ask stays.
: "${DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES:=['distributed.http.health']}"
: "${DASK_DISTRIBUTED__WORKER__HTTP__ROUTES:=['distributed.http.health']}"
export DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES DASK_DISTRIBUTED__WORKER__HTTP__ROUTES
case "${2:-} $*" in
  "worker "*--dashboard-address*) ;;
  "worker "*)
    set -- "$@" --dashboard-address=127.0.0.1:8788 ;; # a port that the health check can know
esac
case "${2:-} $*" in
  "worker "*--no-nanny*) ;;
  "worker "*)
    set -- "$@" --preload-nanny=sadih_dask.cluster.nanny ;; # see there
esac
exec "$@"
