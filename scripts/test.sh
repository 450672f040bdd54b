#!/usr/bin/env bash
# Everything that a change must pass, without questions and as any user: installs what is missing, checks the tree,
# builds, runs the fast tests under the sanitizers, and ends with the whole test suite of the release build.
#
#   scripts/test.sh [--no-install] [--quick]
#
# --quick  leaves out the sanitizer builds, the fuzzers and clang-tidy.
# Every stage prints its name and seconds; the first one that fails ends the run with its exit status.
set -euo pipefail
cd "$(dirname "$0")/.."
install=yes
quick=no
for argument in "$@"; do
  case $argument in
    --no-install) install=no ;;
    --quick) quick=yes ;;
    *) echo "usage: scripts/test.sh [--no-install] [--quick]" >&2; exit 2 ;;
  esac
done
jobs=$(scripts/build_jobs.sh)

stage() {
  local name=$1 begin=$SECONDS status=0
  shift
  printf '\n== %s\n' "$name"
  "$@" || status=$?
  if [ "$status" -ne 0 ]; then
    printf '== %s: FAILED (exit %d) after %d s\n' "$name" "$status" $((SECONDS - begin)) >&2
    exit "$status"
  fi
  printf '== %s: passed in %d s\n' "$name" $((SECONDS - begin))
}

# Configures and builds a preset; the compiler's output is shown only when the build fails.
build() {
  local preset=$1
  shift
  mkdir -p build
  { cmake --preset "$preset" && cmake --build "build/$preset" -j "$jobs" "$@"; } >"build/$preset.log" 2>&1 || {
    tail -n 60 "build/$preset.log" >&2
    return 1
  }
}

# clang-tidy on the sources that differ from the branch point, or from the commit before; at most 12 of them.
tidy_changes() {
  local base files
  base=$(git merge-base HEAD origin/main 2>/dev/null || true)
  if [ -z "$base" ] || [ "$base" = "$(git rev-parse HEAD 2>/dev/null)" ]; then
    base=$(git rev-parse -q --verify HEAD~1 2>/dev/null || true)
  fi
  if [ -z "$base" ]; then
    echo "no earlier commit to compare with: nothing checked (scripts/tidy.sh checks the whole tree)"
    return 0
  fi
  mapfile -t files < <(git diff --name-only --diff-filter=d "$base" -- 'src/*.cc')
  if [ ${#files[@]} -gt 12 ]; then
    echo "${#files[@]} sources differ from $base; the first 12 are checked (scripts/tidy.sh checks all)"
    files=("${files[@]:0:12}")
  fi
  if [ ${#files[@]} -eq 0 ]; then
    echo "no source differs from $base"
    return 0
  fi
  echo "${#files[@]} sources"
  scripts/tidy.sh "${files[@]}"
}

fast_tests_under() {
  local preset=$1
  shift
  build "$preset" --target "$@"
  ctest --test-dir "build/$preset" -L fast --output-on-failure --timeout 600 "${ctest_only[@]}"
}

[ "$install" = yes ] && stage "dependencies" scripts/install_dependencies.sh test
stage "format" scripts/format.sh --check
stage "layers" python3 scripts/check_layers.py
stage "docs" python3 scripts/check_docs.py
stage "field faults" python3 scripts/check_field_faults.py
stage "headers" python3 scripts/check_headers.py
stage "build release" build release
if [ "$quick" = yes ]; then
  echo "left out (--quick): clang-tidy, asan, tsan, fuzz"
else
  stage "clang-tidy" tidy_changes
  ctest_only=()
  stage "asan: address and undefined behaviour" fast_tests_under asan core_test mesh_test kernels_test io_test data_test grpo_test \
    model_test head_test engine_test loop_test bench_test config_test fuzz_test
  ctest_only=(-R '^(core|mesh|engine)$')
  export TSAN_OPTIONS="suppressions=$PWD/scripts/tsan_suppressions.txt"
  export GTEST_FILTER="-MoeRing.WideInBf16:EndToEndGradient.*:HeadModes.FusedAndPlain*" # numbers of long runs
  stage "tsan: data races" fast_tests_under tsan core_test mesh_test engine_test
  unset GTEST_FILTER
  stage "fuzz: hostile files" scripts/fuzz.sh --seconds 4
fi
printf '\n== test release\n'
exec ctest --test-dir build/release --output-on-failure -j 1
