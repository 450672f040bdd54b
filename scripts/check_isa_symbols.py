#!/usr/bin/env python3
"""Checks objects that are compiled once per instruction set: all code they share must be in their own namespace.

    scripts/check_isa_symbols.py NAMESPACE OBJECT...      e.g. lathe::avx512 build/.../rmsnorm_cpu.cc.o

A weak function outside that namespace (an inline function or a template of the standard library, say) exists in
several objects, and the linker keeps any one of them: an AVX-512 copy would then run on a processor without AVX-512.
"""
import re
import subprocess
import sys

WEAK_OR_GLOBAL_CODE = "WTui"  # weak, global, unique, indirect; V is data (type information, virtual tables)


def foreign_symbols(namespace: str, path: str) -> list[str]:
    listing = subprocess.run(["nm", "-C", "--defined-only", path], check=True, capture_output=True, text=True).stdout
    own = re.compile(re.escape(namespace) + "::")
    found = []
    for line in listing.splitlines():
        match = re.match(r"[0-9a-f]+ (\S) (.*)", line)
        if match and match.group(1) in WEAK_OR_GLOBAL_CODE and not own.search(match.group(2)):
            found.append(f"{path}: {match.group(1)} {match.group(2)}")
    return found


def main() -> int:
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    namespace, paths = sys.argv[1], sys.argv[2:]
    found = [symbol for path in paths for symbol in foreign_symbols(namespace, path)]
    if found:
        print("\n".join(found))
        print(f"{len(found)} symbols outside {namespace}: inline them always, or move them out of line into a file that"
              " is compiled once")
        return 1
    print(f"{len(paths)} objects: no shared code outside {namespace}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
