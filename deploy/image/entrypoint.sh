#!/bin/sh
# The image's words are those of `sadih`; `dask ...` runs Dask's own command instead. Dask's Helm
# chart calls it by the older names dask-scheduler and dask-worker.
set -eu
case "${1:-}" in
  dask)
    exec "$@" ;;
  dask-scheduler | dask-worker)
    role=${1#dask-}
    shift
    exec dask "$role" "$@" ;;
  *)
    exec sadih "$@" ;;
esac
