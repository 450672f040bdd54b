#!/usr/bin/env python3
"""Checks the documents and scripts against the tree; every fault is printed as file:line, exit 1 if there is any.

    scripts/check_docs.py [--root FOLDER] [--self-test]

- Relative links of Markdown files, and the paths they name in backticks below src/, tests/, fuzz/, scripts/, tools/, docs/ and
  examples/, exist (a trailing * matches any ending). tests/goldens and examples/*/run, which a run makes, are exempt.
- README.md has at most 150 lines, every file of docs/ at most 200.
- docs/rollouts.md names every key that src/lathe/data/rollout_keys.cc knows.
- Shell scripts parse (bash -n), Python scripts compile.
- No TODO, FIXME or XXX in sources, no source of more than 800 lines.
"""
import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
NAMED = re.compile(r"`((?:src|tests|fuzz|scripts|tools|docs|examples)/[\w./*-]+)`")
MADE_BY_RUNS = re.compile(r"examples/\w+/run/?")
MARK = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX)\b")
README_LINES, DOC_LINES, SOURCE_LINES = 150, 200, 800


def tracked(root, *patterns):
    """Files below root, without build trees and hidden folders."""
    found = {p for pattern in patterns for p in root.rglob(pattern) if p.is_file()}
    return sorted(p for p in found if not any(part == "build" or part.startswith(".") for part in p.relative_to(root).parts[:-1]))


def check_markdown(root, path):
    name = path.relative_to(root).as_posix()
    lines = path.read_text(encoding="utf-8").splitlines()
    limit = README_LINES if name == "README.md" else DOC_LINES if name.startswith("docs/") else None
    if limit and len(lines) > limit:
        yield len(lines), f"{len(lines)} lines, at most {limit}"
    for number, line in enumerate(lines, 1):
        for target in LINK.findall(line):
            if not (path.parent / target).exists():
                yield number, f"link to {target}, which does not exist"
        for target in NAMED.findall(line):
            if not MADE_BY_RUNS.match(target) and not any(root.glob(target.rstrip("/."))):
                yield number, f"names {target}, which does not exist"


def check_source(_, path):
    lines = path.read_text(encoding="utf-8").splitlines()
    if len(lines) > SOURCE_LINES:
        yield len(lines), f"{len(lines)} lines, at most {SOURCE_LINES}"
    for number, line in enumerate(lines, 1):
        if MARK.search(line):
            yield number, f"unfinished: {line.strip()}"


def check_rollout_keys(root, path):
    documented = (root / "docs" / "rollouts.md").read_text(encoding="utf-8")
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        known = re.fullmatch(r'\s*\{"(\w+)", "\w*"\},', line)
        if known and f"`{known[1]}`" not in documented:
            yield number, f"key {known[1]} is not in docs/rollouts.md"


def check_shell(_, path):
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True)
    if done.returncode:
        yield 1, f"does not parse: {done.stderr.strip()}"


def check_python(_, path):
    try:
        compile(path.read_text(encoding="utf-8"), str(path), "exec")
    except SyntaxError as error:
        yield error.lineno or 1, f"does not compile: {error.msg}"


def check_tree(root):
    checks = [(check_markdown, tracked(root, "*.md")), (check_source, tracked(root, "*.cc", "*.h", "*.cmake")),
              (check_rollout_keys, tracked(root / "src", "rollout_keys.cc")), (check_shell, tracked(root, "*.sh") + [p for p in [root / ".ci" / "run"] if p.exists()]),
              (check_python, tracked(root, "*.py"))]
    return [f"{path.relative_to(root)}:{line}: {fault}"
            for check, paths in checks for path in paths for line, fault in check(root, path)]


def self_test():
    """Plants one fault of every kind: each must be found, and nothing in clean files."""
    keys = "src/lathe/data/rollout_keys.cc"
    clean = {"README.md": "[d](docs/a.md#x) `src/a.cc` `src/*.cc` `examples/e/run/`\n", "docs/a.md": "[r](../README.md)\n",
             "docs/rollouts.md": "`reward`\n", keys: '    {"reward", "reward"},\n', "src/a.cc": "int a;\n",
             "scripts/a.sh": "echo a\n", "tools/a.py": "a = 1\n"}
    planted = {"docs/link.md": "[x](gone.md)\n", "docs/name.md": "`src/gone.cc`\n", "docs/long.md": "x\n" * (DOC_LINES + 1),
               keys: '    {"score", "reward"},\n', "src/mark.cc": "// " + "TO" + "DO\n",
               "src/long.cc": "\n" * (SOURCE_LINES + 1), "scripts/b.sh": "if\n", "tools/b.py": "def\n"}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        found = []
        for files in (clean, planted):
            for name, content in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(content)
            found.append(check_tree(root))
    wrong = [f"clean tree: {fault}" for fault in found[0]]
    wrong += [f"planted in {name}: not found once" for name in planted if sum(f.startswith(name + ":") for f in found[1]) != 1]
    if len(found[1]) != len(planted):
        wrong.append(f"{len(found[1])} faults for {len(planted)} planted ones")
    print("\n".join(wrong) or f"self-test: all {len(planted)} planted faults found, the clean files pass")
    return 1 if wrong else 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    p.add_argument("--self-test", action="store_true")
    args = p.parse_args()
    if args.self_test:
        return self_test()
    faults = check_tree(args.root.resolve())
    print("\n".join(faults) or "docs: in order")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
