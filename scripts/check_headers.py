#!/usr/bin/env python3
"""Compiles every header of src/, tests/ and fuzz/ alone, twice included, syntax only: each must bring all it needs.

    scripts/check_headers.py [HEADER...]
"""
import concurrent.futures
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Headers of the instruction-set kernels want what CMake defines for their sources.
FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Isrc", "-Itests", "-fopenmp", "-mavx2", "-mfma",
         "-mf16c", "-DLATHE_ISA_NAMESPACE=avx2", "-DLATHE_SOURCE_DIR=\"\"", "-DLATHE_GOLDENS=\"\"", "-x", "c++", "-"]


def compile_alone(header):
    include = f'#include "{header.relative_to(ROOT)}"\n'
    done = subprocess.run([os.environ.get("CXX", "g++"), "-I.", *FLAGS], input=include * 2, text=True, cwd=ROOT,
                          capture_output=True)
    return None if done.returncode == 0 else f"{header.relative_to(ROOT)} does not stand alone:\n{done.stderr[:2000]}"


def main():
    headers = [Path(h).resolve() for h in sys.argv[1:]]
    headers = headers or sorted([*(ROOT / "src").rglob("*.h"), *(ROOT / "tests").rglob("*.h"), *(ROOT / "fuzz").rglob("*.h")])
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        faults = [fault for fault in pool.map(compile_alone, headers) if fault]
    print("\n".join(faults) or f"headers: {len(headers)} stand alone")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
