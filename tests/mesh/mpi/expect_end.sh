#!/usr/bin/env bash
# expect_end.sh throw|kill|short|long RUN_RANKS MPI_RANKS: the last of 3 ranks fails, all end within 5 s.
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
  short)
    [ "$code" -eq 1 ] || { echo "exit code $code, not 1" >&2; exit 1; }
    grep -q '^rank 0: .*rank 2 sent 8 bytes where 16 were expected' <<<"$output" || exit 1
    ;;
  long)
    [ "$code" -eq 75 ] || { echo "exit code $code, not 75" >&2; exit 1; }
    grep -q '^rank 0: mesh: a message of 16 bytes from rank 2: ' <<<"$output" || exit 1
    ;;
  kill)
    [ "$code" -eq 137 ] || { echo "exit code $code, not 137" >&2; exit 1; }
    ;;
esac
