#!/usr/bin/env python3
"""Checks who includes whom in src/lathe; every violation is printed as file:line, exit 1 if there is any.

    scripts/check_layers.py [--root FOLDER] [--self-test]

Rules:
- A folder of src/lathe includes itself and folders of lower layers (LAYERS); SIDEWAYS lists the one exception.
- kernels/access.h, which turns device memory into host pointers, is included by kernels/ alone.
- Headers of third parties appear only where QUARANTINE allows; any header that is neither ours, nor the standard
  library's, nor the system's, nor named there is refused, so that a new dependency is a decision and not an accident.
- Quoted includes start at the root ("lathe/..."); every header has #pragma once.
"""
import argparse
import re
import sys
import tempfile
from pathlib import Path

LAYERS = [["core"], ["io", "mesh", "kernels"], ["model", "head", "grpo", "data"], ["engine"], ["loop", "bench"], ["config"], ["cli"]]
LEVEL = {folder: level for level, folders in enumerate(LAYERS) for folder in folders}
SIDEWAYS = {("data", "grpo")}

# Beginning of an include -> regexes of the files, below src/lathe, that may have it.
QUARANTINE = {
    "dnnl": [r"kernels/onednn_gemm\.cc"],
    "oneapi/": [r"kernels/onednn_gemm\.cc"],
    "rapidjson/": [r"data/\w+\.cc"],
    "zlib.h": [r"data/\w+\.cc"],
    "yaml-cpp/": [r"config/\w+\.cc"],
    "CLI/": [r"cli/\w+\.(cc|h)"],
    "spdlog/": [r"core/log\.cc"],
    "nlohmann/": [r"\w+/\w+\.cc"],
    "sanitizer/": [r"core/host_memory\.cc"],
    "omp.h": [r"kernels/onednn_gemm\.cc"],
    "mpi.h": [r"mesh/mpi\.cc"],
    "immintrin.h": [r"kernels/\w+\.(cc|h)", r"core/cpu\.cc"],
    "fmt/": [r".*"],
}
STANDARD = re.compile(r"[a-z_0-9]+")  # <vector>, <cmath>
SYSTEM = {"unistd.h", "glob.h", "fcntl.h", "sched.h", "signal.h", "pthread.h", "cpuid.h", "dirent.h", "errno.h", "stdlib.h",
          "poll.h", "sys/file.h", "sys/ioctl.h", "sys/mman.h", "sys/resource.h", "sys/stat.h", "sys/statvfs.h", "sys/syscall.h", "sys/types.h", "sys/wait.h"}
INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')


def check_own(file, included):
    """file: path below src/lathe. included: quoted path."""
    parts = included.split("/")
    if parts[0] != "lathe" or len(parts) < 3:
        return f'"{included}" does not start at the root: write "lathe/FOLDER/FILE"'
    here, there = file.split("/")[0], parts[1]
    if there not in LEVEL:
        return f"{there}/ has no layer: add it to LAYERS in scripts/check_layers.py"
    if included == "lathe/kernels/access.h" and here != "kernels":
        return "kernels/access.h is for kernels/ alone: reach device memory through a kernel"
    if here != there and (here, there) not in SIDEWAYS and LEVEL[there] >= LEVEL[here]:
        return f"{here}/ must not include {there}/: layers go " + " < ".join("|".join(x) for x in LAYERS)
    return None


def check_foreign(file, included):
    for prefix, places in QUARANTINE.items():
        if included.startswith(prefix):
            if any(re.fullmatch(place, file) for place in places):
                return None
            return f"<{included}> is allowed only in {' or '.join(places)}"
    if STANDARD.fullmatch(included) or included in SYSTEM:
        return None
    return f"<{included}> is an unknown dependency: see QUARANTINE in scripts/check_layers.py"


def check_file(path, file):
    """Yields (line number, fault)."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if file.split("/")[0] not in LEVEL:
        yield 1, "this folder has no layer: add it to LAYERS in scripts/check_layers.py"
        return
    if file.endswith(".h") and not any(line.strip() == "#pragma once" for line in lines):
        yield 1, "no #pragma once"
    for number, line in enumerate(lines, 1):
        found = INCLUDE.match(line)
        if found:
            fault = (check_own if found[1] == '"' else check_foreign)(file, found[2])
            if fault:
                yield number, fault


def check_tree(root):
    """All faults as texts, and the number of files seen."""
    source = root / "src" / "lathe"
    paths = sorted(p for p in source.rglob("*") if p.suffix in (".h", ".cc"))
    faults = []
    for path in paths:
        for line, fault in check_file(path, path.relative_to(source).as_posix()):
            faults.append(f"{path.relative_to(root)}:{line}: {fault}")
    return faults, len(paths)


CLEAN = '#pragma once\n#include <vector>\n#include <fmt/format.h>\n#include "lathe/core/error.h"\n'
PLANTED = {  # file -> (content, word that the one fault must contain)
    "core/up.cc": ('#include "lathe/engine/engine.h"\n', "must not include engine/"),
    "model/sideways.cc": ('#include "lathe/head/head.h"\n', "must not include head/"),
    "io/sideways.cc": ('#include "lathe/kernels/device.h"\n', "must not include kernels/"),
    "model/peek.cc": ('#include "lathe/kernels/access.h"\n', "reach device memory"),
    "kernels/matmul.cc": ("  #  include <dnnl.hpp>\n", "onednn_gemm"),
    "io/read.cc": ("#include <rapidjson/reader.h>\n", "is allowed only in data"),
    "loop/train.cc": ("#include <yaml-cpp/yaml.h>\n", "is allowed only in config"),
    "io/read.h": ("#pragma once\n#include <nlohmann/json.hpp>\n", "is allowed only in"),
    "core/parallel.cc": ("#include <omp.h>\n", "onednn_gemm"),
    "core/new.cc": ("#include <boost/any.hpp>\n", "unknown dependency"),
    "core/relative.cc": ('#include "error.h"\n', "does not start at the root"),
    "core/unguarded.h": ("struct A {};\n", "no #pragma once"),
    "misc/stray.cc": ("\n", "has no layer"),
}
ALLOWED = {
    "core/error.h": CLEAN, "grpo/advantages.h": CLEAN,
    "data/packing.cc": '#include "lathe/grpo/advantages.h"\n#include <rapidjson/reader.h>\n#include <zlib.h>\n',
    "kernels/swiglu_ref.cc": '#include "lathe/kernels/access.h"\n#include "lathe/kernels/swiglu.h"\n',
    "kernels/onednn_gemm.cc": "#include <dnnl.hpp>\n", "cli/main.cc": '#include <CLI/CLI.hpp>\n#include "lathe/loop/train.h"\n',
}


def write_tree(root, files):
    for name, content in files.items():
        path = root / "src" / "lathe" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def self_test():
    """Plants one violation of every kind beside clean files: each must be found, nothing else may be."""
    with tempfile.TemporaryDirectory() as folder:
        write_tree(Path(folder), ALLOWED)
        faults, _ = check_tree(Path(folder))
        wrong = [f"clean tree: {fault}" for fault in faults]
        write_tree(Path(folder), {name: content for name, (content, _) in PLANTED.items()})
        faults, _ = check_tree(Path(folder))
    for name, (_, word) in PLANTED.items():
        found = [fault for fault in faults if fault.startswith(f"src/lathe/{name}:")]
        if len(found) != 1 or word not in found[0]:
            wrong.append(f"planted in {name}: expected one fault with '{word}', found {found}")
    if len(faults) != len(PLANTED):
        wrong.append(f"{len(faults)} faults for {len(PLANTED)} planted ones")
    print("\n".join(wrong) or f"self-test: all {len(PLANTED)} planted violations found, the clean files pass")
    return 1 if wrong else 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    p.add_argument("--self-test", action="store_true")
    args = p.parse_args()
    if args.self_test:
        return self_test()
    faults, files = check_tree(args.root)
    if not files:
        faults.append(f"{args.root}: no sources below src/lathe")
    print("\n".join(faults) or f"layers: {files} files are in order")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
