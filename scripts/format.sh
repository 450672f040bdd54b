#!/usr/bin/env bash
# Formats the C++ sources with clang-format 14 (other versions format differently).
#   scripts/format.sh [--check]     --check changes nothing, lists what it would change, and fails if there is any
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in
  "") mode=(-i) ;;
  --check) mode=(--dry-run --Werror) ;;
  *) echo "usage: scripts/format.sh [--check]" >&2; exit 2 ;;
esac
command -v clang-format-14 >/dev/null || {
  echo "scripts/format.sh: clang-format-14 not found; scripts/install_dependencies.sh test installs it" >&2
  exit 1
}
find src tests fuzz \( -name '*.cc' -o -name '*.h' \) -print0 | xargs -0 clang-format-14 "${mode[@]}"
