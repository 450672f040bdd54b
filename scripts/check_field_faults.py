#!/usr/bin/env python3
"""Checks docs/field_faults.md against the tests; every fault is printed as file:line, exit 1 if there is any.

    scripts/check_field_faults.py [--root FOLDER] [--self-test]

- Every `Suite.Test` that the table names is a TEST, TEST_F, TEST_P or TYPED_TEST below tests/, and every path exists.
- Every row has a test, or says "not applicable yet: " and why.
- Rows of one letter are numbered from 1 without a gap, none twice.
- The last line counts them: rows, tested, not applicable yet.
"""
import argparse
import re
import sys
import tempfile
from pathlib import Path

DOCUMENT = "docs/field_faults.md"
ROW = re.compile(r"\| ([A-Z])(\d+) \| [^|]+ \| ([^|]+) \|")
TEST_NAME = re.compile(r"`([A-Za-z]\w*\.[A-Za-z]\w*)`")
PATH_NAME = re.compile(r"`((?:tests|scripts)/[\w./]+)`")
DEFINITION = re.compile(r"\b(?:TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\(\s*(\w+),\s*(\w+)\s*\)")
REASON = "not applicable yet: "
COUNTS = "{} rows: {} tested, {} not applicable yet."


def defined_tests(root):
    return {f"{suite}.{test}" for path in sorted((root / "tests").rglob("*.cc"))
            for suite, test in DEFINITION.findall(path.read_text(encoding="utf-8"))}


def check(root):
    known = defined_tests(root)
    numbers, tested, without = {}, 0, 0
    lines = (root / DOCUMENT).read_text(encoding="utf-8").splitlines()
    for line_number, line in enumerate(lines, 1):
        row = ROW.fullmatch(line)
        if not row:
            if re.match(r"\| \S*\d", line):
                yield line_number, "is no row of the form | A1 | fault | test or reason |"
            continue
        letter, number, holder = row[1], int(row[2]), row[3]
        if number != numbers.get(letter, 0) + 1:
            yield line_number, f"{letter}{number} comes after {letter}{numbers.get(letter, 0)}"
        numbers[letter] = number
        tests, paths = TEST_NAME.findall(holder), PATH_NAME.findall(holder)
        for name in tests:
            if name not in known:
                yield line_number, f"there is no test {name}"
        for path in paths:
            if not (root / path).exists():
                yield line_number, f"{path} does not exist"
        if holder.startswith(REASON):
            without += 1
        elif tests or paths:
            tested += 1
        else:
            yield line_number, f"names neither a test nor '{REASON}...'"
    expected = COUNTS.format(tested + without, tested, without)
    if not lines or lines[-1] != expected:
        yield max(len(lines), 1), f"the last line must be: {expected}"


def report(root):
    return [f"{DOCUMENT}:{line}: {fault}" for line, fault in check(root)]


def self_test():
    """Plants one fault of every kind: each must be found, and nothing in a clean document."""
    good = ["| A1 | x | `S.Works` |", "| A2 | y | not applicable yet: no server |", "| B1 | z | `tests/a.cc` runs it |"]
    end = COUNTS.format(3, 2, 1)
    cases = [("", good + [end], 0), ("no test", [good[0].replace("Works", "Gone")] + good[1:] + [end], 1),
             ("gap", [good[0], good[1].replace("A2", "A3"), good[2], end], 1),
             ("no path", good[:2] + [good[2].replace("a.cc", "b.cc"), end], 1),
             ("no holder", good[:2] + ["| B1 | z | later |", COUNTS.format(2, 1, 1)], 1),
             ("no row", good + ["| B2 | z |", end], 1), ("counts", good + [COUNTS.format(3, 3, 0)], 1)]
    wrong = []
    for what, lines, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "docs").mkdir()
            (root / "tests").mkdir()
            (root / "tests" / "a.cc").write_text("TEST_F(S, Works) {}\n")
            (root / DOCUMENT).write_text("\n".join(lines) + "\n")
            found = report(root)
            if len(found) != expected:
                wrong.append(f"{what or 'clean document'}: {found}")
    print("\n".join(wrong) or f"self-test: all {len(cases) - 1} planted faults found, the clean document passes")
    return 1 if wrong else 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    p.add_argument("--self-test", action="store_true")
    args = p.parse_args()
    if args.self_test:
        return self_test()
    faults = report(args.root.resolve())
    print("\n".join(faults) or f"{DOCUMENT}: in order")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
