#!/usr/bin/env bash
# Runs a command as N ranks of one machine, with what Open MPI needs there (docs/distributed.md says why, setting by
# setting). Exits with the exit code of the rank that ended the job. SIGTERM and SIGINT reach every rank as SIGUSR1, on which
# `lathe train` saves and stops; a second one ends the job at once.
#
#   scripts/run_ranks.sh N COMMAND [ARGUMENT...]
set -uo pipefail
if [ $# -lt 2 ] || ! [[ $1 =~ ^[1-9][0-9]*$ ]]; then
  echo "usage: scripts/run_ranks.sh N COMMAND [ARGUMENT...]" >&2
  exit 2
fi
ranks=$1
shift
if [ "$(id -u)" -eq 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
# Ended with this script, if that is killed.
with_parent=()
if command -v setpriv >/dev/null; then with_parent=(setpriv --pdeathsig TERM); fi

signals=0
pass_on() {
  signals=$((signals + 1))
  if [ "$signals" -eq 1 ]; then kill -USR1 "$mpirun"; else kill -TERM "$mpirun"; fi 2>/dev/null
}
set -m # a process group of its own: Ctrl-C is for this script
"${with_parent[@]}" mpirun -np "$ranks" --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 \
  --mca btl vader,self "$@" <&0 &
mpirun=$!
trap pass_on TERM INT
while :; do # a signal interrupts wait
  before=$signals
  wait "$mpirun"
  code=$?
  [ "$signals" -ne "$before" ] || exit "$code"
done
