#!/usr/bin/env bash
# Runs a command as N ranks of one machine, with what Open MPI needs there (docs/distributed.md says why, setting by
# setting). Exits with the exit code of the rank that ended the job.
#
#   scripts/run_ranks.sh N COMMAND [ARGUMENT...]
set -euo pipefail
if [ $# -lt 2 ] || ! [[ $1 =~ ^[1-9][0-9]*$ ]]; then
  echo "usage: scripts/run_ranks.sh N COMMAND [ARGUMENT...]" >&2
  exit 2
fi
ranks=$1
shift
if [ "$(id -u)" -eq 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
exec mpirun -np "$ranks" --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca btl vader,self "$@"
