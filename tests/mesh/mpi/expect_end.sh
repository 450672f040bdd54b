#!/usr/bin/env bash
# expect_end.sh throw|kill RUN_RANKS MPI_RANKS: the last of 3 ranks fails, all end within 5 s.
set -uo pipefail
what=$1
begin=$(date +%s%N)
output=$("$2" 3 "$3" "$what" 2>&1)
code=$?
seconds=$((($(date +%s%N) - begin) / 1000000000))
echo "$output"
[ "$seconds" -lt 5 ] || { echo "took $seconds s" >&2; exit 1; }
case $what in
  throw)
    [ "$code" -eq 3 ] || { echo "exit code $code, not 3" >&2; exit 1; }
    grep -q '^rank 2: rollouts.jsonl:7: has no tokens$' <<<"$output" || exit 1
    for rank in 0 1; do
      grep -q "^rank $rank: rank 2 failed: rollouts.jsonl:7: has no tokens\$" <<<"$output" || exit 1
    done
    ;;
  kill)
    [ "$code" -eq 137 ] || { echo "exit code $code, not 137" >&2; exit 1; }
    ;;
esac
