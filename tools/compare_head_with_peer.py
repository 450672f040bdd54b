#!/usr/bin/env python3
"""Time `lathe bench head` beside a peer's head on the same shape, one after the other, and print the ratios.

    compare_head_with_peer.py --lathe BINARY --peer 'python peer.py' [--tokens 2048] [--dim 1024] [--vocab 32768]
                              [--dtype f32] [--entropy-grad both] [--isa avx2] [--threads 2] [--rounds 3]

The peer must accept --tokens, --dim, --vocab, --chunk, --dtype, --threads, --repeats, --entropy-cotangent (0: the entropy is
only computed) and --ways, and print one JSON object with `results`, each with `way` (`full`: all logits at once; `chunked`:
chunks of tokens, made again in backward) and `seconds`. Every round runs all four once; printed are the medians over the rounds
and the range of the ratios. A machine that does anything else at the time makes the numbers worthless.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys

# What keeps a peer built on torch to an older instruction set too.
PEER_ISA = {"avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
            "avx512": {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
                       "MKL_ENABLE_INSTRUCTIONS": "AVX512"}}


def run(command, extra):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                          env={**os.environ, **extra})
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def shape_of(args):
    return ["--tokens", str(args.tokens), "--dim", str(args.dim), "--vocab", str(args.vocab), "--dtype", args.dtype,
            "--threads", str(args.threads), "--repeats", str(args.repeats)]


def our_seconds(args, path, entropy):
    report = run([args.lathe, "bench", "head", *shape_of(args), "--path", path, "--json"] +
                 (["--entropy-grad"] if entropy else []), {"LATHE_ISA": args.isa} if args.isa else {})
    return report["forward_s"] + report["backward_s"], report


def peer_seconds(args, way, entropy):
    report = run(shlex.split(args.peer) + shape_of(args) + ["--chunk", str(args.peer_chunk), "--ways", way] +
                 ([] if entropy else ["--entropy-cotangent", "0"]), PEER_ISA.get(args.isa, {}))
    return report["results"][0]["seconds"]


def span(values):
    return f"{statistics.median(values):.3f} ({min(values):.3f} .. {max(values):.3f})"


def compare(args, entropy):
    print(f"{args.tokens} x {args.dim} x {args.vocab}, {args.dtype}, {args.threads} threads, isa {args.isa or 'of the machine'}, "
          f"entropy {'differentiated' if entropy else 'computed only'}")
    rounds = []
    for _ in range(args.rounds):
        known, known_report = our_seconds(args, "known", entropy)
        full = peer_seconds(args, "full", entropy)
        two_pass, two_report = our_seconds(args, "two-pass", entropy)
        chunked = peer_seconds(args, "chunked", entropy)
        rounds.append({"known": known, "two-pass": two_pass, "full": full, "chunked": chunked,
                       "known of products": known_report["ratio_to_gemm"],
                       "two-pass of products": two_report["ratio_to_gemm"]})
    last = {"known": known_report, "two-pass": two_report}
    column = lambda name: [r[name] for r in rounds]
    for path in ("known", "two-pass"):
        report = last[path]
        print(f"  {path:8s} {statistics.median(column(path)):8.3f} s, {span(column(path + ' of products'))} of the library's products, "
              f"{report['peak_extra_bytes'] / 2**20:.1f} MiB extra, {report['kept_bytes']} bytes kept")
    for way in ("full", "chunked"):
        print(f"  peer {way:8s} {statistics.median(column(way)):8.3f} s")
    for path, way in (("known", "full"), ("known", "chunked"), ("two-pass", "full"), ("two-pass", "chunked")):
        print(f"  {path} is {span([r[way] / r[path] for r in rounds])} times as fast as the peer's {way}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lathe", required=True)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--vocab", type=int, default=32768)
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--peer-chunk", type=int, default=256)
    parser.add_argument("--entropy-grad", choices=("both", "yes", "no"), default="both")
    parser.add_argument("--isa", choices=sorted(PEER_ISA))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    for entropy in (False, True):
        if args.entropy_grad != "both" and entropy != (args.entropy_grad == "yes"):
            continue
        compare(args, entropy)


if __name__ == "__main__":
    main()
