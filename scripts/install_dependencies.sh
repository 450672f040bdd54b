#!/usr/bin/env bash
# Installs the distribution packages that Lathe needs and that are missing.
#
#   scripts/install_dependencies.sh [build|test]
#
# build (default): to build and run the program. test: also the tests, the sanitizer builds and the lint.
# Debian 12 or a relative of it; as root, or with sudo. Does nothing, and needs no rights, when nothing is missing.
set -euo pipefail

build_packages=(
  g++ cmake ninja-build
  libdnnl-dev           # matrix products
  rapidjson-dev         # rollout lines
  zlib1g-dev            # rollout files that end in .gz
  nlohmann-json3-dev    # config.json, safetensors headers, metrics
  libyaml-cpp-dev       # run files
  libcli11-dev          # the command line
  libspdlog-dev libfmt-dev  # log and messages
  libopenmpi-dev openmpi-bin  # exchanges between ranks, and their launcher
)
test_packages=(
  libgtest-dev python3 clang-format-14 clang-tidy-14 libomp-dev
  clang-14 libclang-rt-14-dev  # fuzzers
)

set_name=${1:-build}
case $set_name in
  build) wanted=("${build_packages[@]}") ;;
  test) wanted=("${build_packages[@]}" "${test_packages[@]}") ;;
  *)
    echo "usage: scripts/install_dependencies.sh [build|test]; '$set_name' is neither" >&2
    exit 2
    ;;
esac

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "scripts/install_dependencies.sh: no apt-get here; install what these Debian packages hold by other means:" >&2
  echo "  ${wanted[*]}" >&2
  exit 1
fi

missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "dependencies ($set_name): all ${#wanted[@]} packages are installed"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "scripts/install_dependencies.sh: packages are missing, and this is neither root nor is there sudo; as root run:" >&2
    echo "  apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "dependencies ($set_name): installing ${missing[*]}"
run_apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=3 "$@"
}
run_apt update
run_apt install --no-install-recommends "${missing[@]}"
