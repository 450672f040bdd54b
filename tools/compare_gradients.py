#!/usr/bin/env python3
"""Compares two files of `lathe train --gradients-out`, tensor by tensor: direction (cosine) and size.

    tools/compare_gradients.py f32.safetensors bf16.safetensors [--threshold 0.99] [--floor 1e-3] [--all]

For what bf16 products do to the gradients of a model, run the same step twice:

    lathe train run.yaml --set model.compute_dtype=f32 --set run.dir=a --gradients-out f32.safetensors
    lathe train run.yaml --set model.compute_dtype=bf16 --set run.dir=b --gradients-out bf16.safetensors

The first file is the reference. A tensor whose gradient there has less than --floor of the norm of all gradients is
shown but not judged: it is a sum whose terms cancel, and rounding is most of what is left. Experts of a mixture that
only few tokens reach may fall there too. With --all such tensors are judged as well.

Exit code 0: every judged tensor has a cosine of at least --threshold. 1: one has not, or is not finite, or the files do
not hold the same tensors. 2: a file cannot be read. Needs numpy.
"""
import argparse
import json
import os
import struct
import sys

import numpy

FILE_DTYPES = {"F32": numpy.dtype("<f4"), "F64": numpy.dtype("<f8"), "F16": numpy.dtype("<f2")}


def read_safetensors(path):
    """Names and arrays (mapped, not read) of a safetensors file."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > os.fstat(file.fileno()).st_size:
            raise ValueError(f"{path} is no safetensors file")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype = FILE_DTYPES[entry["dtype"]]
        count = (end - begin) // dtype.itemsize
        if count == 0:
            tensors[name] = numpy.zeros(entry["shape"], dtype)
            continue
        tensors[name] = numpy.memmap(path, dtype, "r", 8 + length + begin, (count,)).reshape(entry["shape"])
    return tensors


def compare(reference, other):
    """Cosine, norm of the reference, and the ratio of the norms."""
    a = numpy.asarray(reference, numpy.float64).ravel()
    b = numpy.asarray(other, numpy.float64).ravel()
    a_norm, b_norm = numpy.linalg.norm(a), numpy.linalg.norm(b)
    if a_norm == 0 or b_norm == 0:
        return (1.0 if a_norm == b_norm else 0.0), a_norm, 1.0 if a_norm == b_norm else 0.0
    return float(a @ b / (a_norm * b_norm)), a_norm, b_norm / a_norm


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference")
    parser.add_argument("other")
    parser.add_argument("--threshold", type=float, default=0.99, help="lowest cosine that passes (0.99)")
    parser.add_argument("--floor", type=float, default=1e-3, help="part of the norm of all gradients (0.001)")
    parser.add_argument("--all", action="store_true", help="judge tensors below the floor too")
    arguments = parser.parse_args()
    try:
        reference, other = read_safetensors(arguments.reference), read_safetensors(arguments.other)
    except (OSError, ValueError, KeyError, struct.error) as error:
        print(f"cannot be read: {error}", file=sys.stderr)
        return 2

    failed = False
    for name in sorted(set(reference) ^ set(other)):
        print(f"{name}: only in {arguments.reference if name in reference else arguments.other}")
        failed = True
    names = sorted(set(reference) & set(other))
    for name in [n for n in names if reference[n].shape != other[n].shape]:
        print(f"{name}: {list(reference[name].shape)} and {list(other[name].shape)}")
        failed = True
        names.remove(name)

    rows = [(name, *compare(reference[name], other[name])) for name in names]
    total = numpy.sqrt(sum(norm * norm for _, _, norm, _ in rows))
    judged = 0
    print(f"{'cosine':>11}  {'size ratio':>10}  {'of norm':>9}  tensor")
    for name, cosine, norm, ratio in sorted(rows, key=lambda row: row[1]):
        is_judged = arguments.all or not norm < arguments.floor * total
        good = cosine >= arguments.threshold  # False for NaN
        verdict = "" if not is_judged else ("" if good else "  FAILED")
        judged += is_judged
        failed |= is_judged and not good
        mark = "" if is_judged else "  (below the floor)"
        print(f"{cosine:11.8f}  {ratio:10.6f}  {norm / total if total else 0:9.2e}  {name}{mark}{verdict}")
    print(f"{judged} of {len(rows)} tensors judged, cosine of at least {arguments.threshold}: "
          f"{'failed' if failed else 'passed'}")
    return 1 if failed or judged == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
