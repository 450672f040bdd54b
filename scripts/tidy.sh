#!/usr/bin/env bash
# Runs clang-tidy 14 with the checks of .clang-tidy; any finding is an error.
#   scripts/tidy.sh [FILE.cc...]    default: every source of src/ (long)
# Reads the compile commands of build/release, which `cmake --preset release` writes.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v clang-tidy-14 >/dev/null || {
  echo "scripts/tidy.sh: clang-tidy-14 not found; scripts/install_dependencies.sh test installs it" >&2
  exit 1
}
[ -f build/release/compile_commands.json ] || cmake --preset release >/dev/null
if [ $# -gt 0 ]; then files=("$@"); else mapfile -t files < <(find src -name '*.cc' | sort); fi
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(scripts/build_jobs.sh)" \
  clang-tidy-14 -p build/release --quiet
