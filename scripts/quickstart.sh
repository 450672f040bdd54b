#!/usr/bin/env bash
# From a fresh clone to a trained model: installs what is missing, builds the program, trains the arithmetic demo for 12
# steps, and compares the log-probs of held-out answers before and after.
#
#   scripts/quickstart.sh [--out DIR] [--no-install] [--set section.key=value]...
#
# --out         run folder; must not exist yet. Default: build/quickstart/run, replaced each time.
# --no-install  trust that the dependencies are there.
# --set         passed on to `lathe train`; with optimizer.learning_rate=0 nothing is learned, and the script says so.
set -euo pipefail
export LC_ALL=C
started=$SECONDS
caller=$PWD
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/quickstart
demo=$root/examples/arithmetic

out=""
install=yes
settings=()
while [ $# -gt 0 ]; do
  case $1 in
    --out | --set)
      [ $# -ge 2 ] || { echo "scripts/quickstart.sh: $1 needs a value" >&2; exit 2; }
      case $1=$2 in
        --set=run.dir=*) echo "scripts/quickstart.sh: give the run folder with --out" >&2; exit 2 ;;
        --set=*) settings+=(--set "$2") ;;
        *) out=$2 ;;
      esac
      shift 2
      ;;
    --no-install) install=no; shift ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "scripts/quickstart.sh: unknown argument '$1'; try --help" >&2; exit 2 ;;
  esac
done
if [ -z "$out" ]; then
  out=$build/run
  rm -rf "$out"
else
  case $out in /*) ;; *) out=$caller/$out ;; esac
  [ ! -e "$out" ] || { echo "scripts/quickstart.sh: $out exists; give a new folder to --out" >&2; exit 2; }
fi

heading() { printf '\n== %s\n' "$*"; }

heading "dependencies"
if [ "$install" = yes ]; then "$root/scripts/install_dependencies.sh" build; else echo "not checked (--no-install)"; fi

heading "build"
mkdir -p "$root/build"
if ! { cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLATHE_TESTS=OFF &&
  cmake --build "$build" -j "$("$root/scripts/build_jobs.sh")" --target lathe; } >"$build.log" 2>&1; then
  tail -n 40 "$build.log" >&2
  echo "scripts/quickstart.sh: the build failed; the whole log is $build.log" >&2
  exit 1
fi
lathe=$build/src/lathe/cli/lathe
echo "$lathe ($((SECONDS - started)) s)"

heading "train: 12 steps on recorded answers to sums and products"
train_started=$SECONDS
(cd "$caller" && "$lathe" train "$demo/run.yaml" --set "run.dir=$out" "${settings[@]}")
echo "trained in $((SECONDS - train_started)) s; run folder $out"

# score MODEL NAME: prints the mean log-probs of right and of wrong held-out answers, per token.
score() {
  local summary
  summary=$("$lathe" score --model "$1" --rollouts "$demo/held_out.jsonl" --out "$out/held_out_$2.jsonl" --json \
    2>"$out/score_$2.log") || { cat "$out/score_$2.log" >&2; return 1; }
  for key in mean_logprob_rewarded mean_logprob_unrewarded; do
    printf '%s' "$summary" | tr ',{}' '\n' | sed -n "s/^[[:space:]]*\"$key\":[[:space:]]*\(-\{0,1\}[0-9][0-9.eE+-]*\)[[:space:]]*\$/\1/p"
  done
}

heading "what was learned, on answers to 64 prompts that were not trained on"
before=$(score "$demo/model" before)
after=$(score "$out/checkpoints/$(cat "$out/checkpoints/latest")" after)
# shellcheck disable=SC2086  # each holds two numbers
printf '%s\n' $before $after | awk '
  { value[NR] = $1 }
  END {
    if (NR != 4) { print "scripts/quickstart.sh: lathe score did not report both means" > "/dev/stderr"; exit 1 }
    gap_before = value[1] - value[2]; gap_after = value[3] - value[4]; change = gap_after - gap_before
    printf "mean log-prob per token   before     after\n"
    printf "  right answers          %8.4f  %8.4f\n", value[1], value[3]
    printf "  wrong answers          %8.4f  %8.4f\n", value[2], value[4]
    printf "  gap, right - wrong     %8.4f  %8.4f\n", gap_before, gap_after
    if (change > 0.001)
      printf "The policy now prefers right answers by %.3f nats per token more than before.\n", change
    else if (change < -0.001)
      printf "The policy got worse: it prefers right answers by %.3f nats per token less than before.\n", -change
    else
      printf "Nothing was learned: the preference for right answers changed by %.4f nats per token.\n", change < 0 ? -change : change
  }'

heading "done in $((SECONDS - started)) s"
