#!/usr/bin/env bash
# Prints how many compilers may run at once: one a core, but no more than memory holds at 1.5 GiB each.
set -euo pipefail
cores=$(nproc)
available_kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
limit=$((available_kib / (1536 * 1024)))
jobs=$((limit < cores ? limit : cores))
echo $((jobs > 1 ? jobs : 1))
