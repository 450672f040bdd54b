#!/usr/bin/env python3
"""Time `lathe train` beside a peer's training script on the same work, one after the other, and print the ratios.

    compare_with_peer.py --lathe BINARY --model DIR --rollouts FILE --peer 'python peer.py' [--steps 5] [--threads 2]
                         [--row-length 2048] [--remat auto]

The peer must accept --model, --rollouts, --steps, --threads, --row-length, --lr and --json, and print one JSON object with
`steps` (each with tokens_per_s), `tokens_per_s_median` and `peak_rss_bytes`. Both compute in f32. Medians over the steps after
the first on both sides; a machine that does anything else at the time makes the numbers worthless.
"""
import argparse
import json
import os
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile


def run(command, **kwargs):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, **kwargs)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def our_steps(args, folder):
    run_dir = os.path.join(folder, "run")
    run_file = os.path.join(folder, "run.yaml")
    with open(run_file, "w", encoding="utf-8") as f:
        json.dump({"model": {"path": os.path.abspath(args.model), "compute_dtype": "f32"},
                   "data": {"rollouts": os.path.abspath(args.rollouts), "row_length": args.row_length},
                   "optimizer": {"learning_rate": 1e-6},
                   "remat": {"policy": args.remat},
                   "run": {"dir": run_dir, "steps": args.steps, "threads": args.threads}}, f)
    run([args.lathe, "train", run_file])
    with open(os.path.join(run_dir, "metrics.jsonl"), encoding="utf-8") as f:
        steps = [json.loads(line) for line in f]
    shutil.rmtree(run_dir)
    return steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lathe", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rollouts", required=True)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--row-length", type=int, default=2048)
    parser.add_argument("--remat", choices=("auto", "full", "none"), default="auto")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        ours = our_steps(args, folder)
    our_rss = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024  # the save at the end included
    peer = json.loads(run(shlex.split(args.peer) + [
        "--model", args.model, "--rollouts", args.rollouts, "--steps", str(args.steps), "--threads", str(args.threads),
        "--row-length", str(args.row_length), "--lr", "1e-6", "--json"]))
    gemm = json.loads(run([args.lathe, "bench", "step", "--config", args.model, "--tokens", "256", "--threads",
                           str(args.threads), "--repeats", "3", "--json"]))["gemm_flops_per_s"]

    after = slice(1 if args.steps > 1 else 0, None)
    our_rate = statistics.median(s["perf/tokens_per_s"] for s in ours[after])
    our_flops = statistics.median(s["perf/model_flops_per_s"] for s in ours[after])
    peer_rate = statistics.median(s["tokens_per_s"] for s in peer["steps"][after])
    idle = max(s["time/idle_s"] / s["time/step_s"] for s in ours[after])
    print(f"tokens/s    {our_rate:8.0f}   peer {peer_rate:8.0f}   ratio {our_rate / peer_rate:.3f}")
    print(f"peak MiB    {our_rss / 2**20:8.0f}   peer {peer['peak_rss_bytes'] / 2**20:8.0f}   ratio {our_rss / peer['peak_rss_bytes']:.3f}")
    print(f"model GFLOP/s {our_flops / 1e9:6.1f}   library products {gemm / 1e9:6.1f}   ratio {our_flops / gemm:.3f}")
    print(f"startup {ours[0]['time/startup_s']:.2f} s, device idle at most {100 * idle:.2f} % of a step, remat {args.remat}")


if __name__ == "__main__":
    main()
