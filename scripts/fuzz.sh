#!/usr/bin/env bash
# Builds the fuzzers of fuzz/ with clang, then lets each look for inputs that make its parser fail.
#
#   scripts/fuzz.sh [--seconds N] [TARGET...]     default: 20 seconds each, all targets; a long run is --seconds 600
#
# What a run learns is kept in build/fuzz/learned/TARGET, where the next one goes on. A finding ends the script with exit
# status 1; its input is build/fuzz/findings/TARGET-*. Fix the code, then keep the input in fuzz/corpus/TARGET: the test
# suite reads that folder.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=20
names=()
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=${2:?a number of seconds}; shift 2 ;;
    -*) echo "usage: scripts/fuzz.sh [--seconds N] [TARGET...]" >&2; exit 2 ;;
    *) names+=("$1"); shift ;;
  esac
done
if [ ${#names[@]} -eq 0 ]; then mapfile -t names < <(ls fuzz/corpus); fi
command -v clang++-14 >/dev/null || {
  echo "scripts/fuzz.sh: clang++-14 not found; scripts/install_dependencies.sh test installs it" >&2
  exit 1
}
begin=$SECONDS
mkdir -p build
{ cmake --preset fuzz && cmake --build build/fuzz -j "$(scripts/build_jobs.sh)"; } >build/fuzz.log 2>&1 || {
  tail -n 60 build/fuzz.log >&2
  exit 1
}
echo "fuzzers built in $((SECONDS - begin)) s"

# The files that the parsers open are in memory where that can be. libFuzzer ends without cleaning up.
shared=/dev/shm
[ -w "$shared" ] || shared=${TMPDIR:-/tmp}
TMPDIR=$(mktemp -d -p "$shared" lathe_fuzz_XXXXXX)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

# Interceptors of the sanitizers keep freed memory for a while: a low quarantine leaves the limit to the parser.
export ASAN_OPTIONS=quarantine_size_mb=16:detect_leaks=1
export UBSAN_OPTIONS=print_stacktrace=1
# One target until its time is over; what it said is in $log. An input that only took long because the machine did something
# else, and is quick now, is no finding.
fuzz_target() {
  local end=$((SECONDS + seconds)) artifact
  : >"$log"
  while [ $SECONDS -lt $end ]; do
    "build/fuzz/fuzz/fuzz_$name" -max_total_time=$((end - SECONDS)) -timeout=10 -rss_limit_mb=2048 -max_len=8192 \
      -dict="fuzz/dictionaries/$name.dict" -artifact_prefix="$findings/$name-" -print_final_stats=1 \
      "$learned" "fuzz/corpus/$name" >>"$log" 2>&1 && continue
    artifact=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
    case $artifact in *-timeout-*) ;; *) return 1 ;; esac
    "build/fuzz/fuzz/fuzz_$name" -timeout=10 "$artifact" >>"$log" 2>&1 || return 1
    rm -f "$artifact"
  done
}

status=0
for name in "${names[@]}"; do
  [ -d "fuzz/corpus/$name" ] || { echo "scripts/fuzz.sh: no target '$name'; there are: $(ls fuzz/corpus | xargs)" >&2; exit 2; }
  learned=build/fuzz/learned/$name
  findings=build/fuzz/findings
  log=build/fuzz/$name.log
  mkdir -p "$learned" "$findings"
  if fuzz_target; then
    echo "$name: $(awk '/number_of_executed_units/ {runs += $2} END {print runs}' "$log") inputs in $seconds s, $(find "$learned" -type f | wc -l) kept, nothing found"
  else
    echo "$name: FOUND; the log is $log, its end:" >&2
    grep -v '^#' "$log" | tail -n 40 >&2
    status=1
  fi
done
exit "$status"
