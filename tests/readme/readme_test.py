#!/usr/bin/env python3
"""Runs the `sh` blocks of README.md with the built binary, in a scratch folder that holds a copy of examples/.

    readme_test.py --source FOLDER --lathe BINARY

The lines of a block run in order, in one shell, stopping at the first that fails. Lines that start with scripts/ would
build everything again: of those, the script must exist, parse and be executable. At least MINIMUM lathe commands must
be there, so that a change of the README's markup cannot empty the test.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MINIMUM = 4
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def check_script(source, line):
    script = source / line.split()[0]
    if not script.is_file():
        return f"{script} does not exist"
    if not os.access(script, os.X_OK):
        return f"{script} is not executable"
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    return done.stderr if done.returncode else None


def run_block(lines, folder, environment):
    """None, or the failure with the end of the output."""
    program = "set -eux\n" + "\n".join(lines)
    done = subprocess.run(["bash", "-c", program], cwd=folder, env=environment, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=280)
    sys.stdout.write(done.stdout)
    return f"exit {done.returncode}" if done.returncode else None


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--source", type=Path, required=True)
    p.add_argument("--lathe", type=Path, required=True)
    args = p.parse_args()
    source = args.source.resolve()
    faults, commands = [], 0
    with tempfile.TemporaryDirectory(prefix="lathe_readme.") as scratch:
        shutil.copytree(source / "examples", Path(scratch) / "examples", ignore=shutil.ignore_patterns("run"))
        binaries = Path(scratch) / "bin"
        binaries.mkdir()
        (binaries / "lathe").symlink_to(args.lathe.resolve())
        environment = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}"}
        for block in BLOCK.findall((source / "README.md").read_text(encoding="utf-8")):
            lines = [line for line in block.splitlines() if line.strip()]
            scripts = [line for line in lines if line.startswith("scripts/")]
            faults += [fault for fault in (check_script(source, line) for line in scripts) if fault]
            rest = [line for line in lines if line not in scripts]
            commands += sum(line.startswith("lathe ") for line in rest)
            if rest:
                fault = run_block(rest, scratch, environment)
                if fault:
                    faults.append(f"block of README.md failed ({fault}):\n{block}")
    if commands < MINIMUM:
        faults.append(f"README.md has {commands} lathe commands in sh blocks, at least {MINIMUM} expected")
    print("\n".join(faults) or f"README: {commands} lathe commands work")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
