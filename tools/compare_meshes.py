#!/usr/bin/env python3
"""Time the same optimizer steps on one rank and on meshes of several, one after the other, and print the ratios.

    compare_meshes.py --lathe BINARY --model DIR [--launcher scripts/run_ranks.sh] [--meshes 'fsdp=2' 'context=2']
                      [--rows 4] [--row-length 2048] [--rows-per-micro-batch 2] [--steps 3] [--repeats 3]

One rank gets as many threads as a mesh has ranks, a rank of a mesh one. Rollouts are made here: pairs of sequences that fill
their rows (at least 97 %, checked after the run). f32, everything recomputed on both sides. Medians over the steps after the
first; ratios of runs that follow each other, and their median. Memory is what a rank holds of weights, gradients and
optimizer state, `perf/state_mem_bytes`, against one rank's. With several context ranks the state sweep of the gated delta
rule is work that one rank has not: its share comes from `lathe bench gdn`. Only an idle machine gives numbers worth having.
"""
import argparse
import json
import os
import random
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}")
    return done.stdout


def make_rollouts(path, args):
    """Pairs of sequences that fill a row up to a few tokens; groups of two, one of them rewarded."""
    with open(os.path.join(args.model, "config.json"), encoding="utf-8") as f:
        vocab = json.load(f)["vocab_size"]
    rng = random.Random(7)
    blocks = args.row_length // 64
    with open(path, "w", encoding="utf-8") as f:
        for row in range(args.rows):
            first = rng.randint(blocks // 2 + 1, 3 * blocks // 4)
            for place, length in enumerate((first * 64, args.row_length - first * 64)):
                prompt = rng.randint(32, 64)
                completion = length - prompt - rng.randint(0, 8)
                f.write(json.dumps({
                    "group_id": row,
                    "prompt_ids": [rng.randrange(vocab) for _ in range(prompt)],
                    "completion_ids": [rng.randrange(vocab) for _ in range(completion)],
                    "completion_logprobs": [round(rng.uniform(-12, -9), 3) for _ in range(completion)],
                    "reward": float(place)}) + "\n")


def train(args, folder, rollouts, mesh, threads, ranks):
    run_dir = os.path.join(folder, "run")
    run_file = os.path.join(folder, "run.yaml")
    with open(run_file, "w", encoding="utf-8") as f:
        json.dump({"model": {"path": os.path.abspath(args.model), "compute_dtype": "f32"},
                   "data": {"rollouts": rollouts, "row_length": args.row_length,
                            "rows_per_micro_batch": args.rows_per_micro_batch},
                   "optimizer": {"learning_rate": 1e-6},
                   "remat": {"policy": "full"},
                   "mesh": mesh,
                   "run": {"dir": run_dir, "steps": args.steps, "threads": threads}}, f)
    launcher = shlex.split(args.launcher) + [str(ranks)] if ranks > 1 else []
    run(launcher + [os.path.abspath(args.lathe), "train", run_file])
    with open(os.path.join(run_dir, "metrics.jsonl"), encoding="utf-8") as f:
        steps = [json.loads(line) for line in f]
    shutil.rmtree(run_dir)
    if steps[0]["pack/fill"] < 0.97:
        sys.exit(f"rows are {100 * steps[0]['pack/fill']:.1f} % full, 97 % are wanted: choose another --row-length")
    after = steps[1:] or steps
    return {"rate": statistics.median(s["perf/tokens_per_s"] for s in after),
            "fill": steps[0]["pack/fill"],
            "micro_batches": steps[0]["pack/micro_batches"],
            "peak": steps[-1]["perf/peak_mem_bytes"],
            "state": steps[-1]["perf/state_mem_bytes"]}


def sweep_share(args, context):
    """Of the rule's forward and backward on one shard: the state sweeps, plain, widened, adjoint."""
    with open(os.path.join(args.model, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    if "linear_attention" not in config.get("layer_types", []):
        return None
    timed = json.loads(run([args.lathe, "bench", "gdn", "--tokens", str(args.row_length // context), "--threads", "1",
                            "--key-heads", str(config["linear_num_key_heads"]),
                            "--value-heads", str(config["linear_num_value_heads"]),
                            "--key-dim", str(config["linear_key_head_dim"]),
                            "--value-dim", str(config["linear_value_head_dim"]), "--json"]))
    rule = timed["forward_s"] + timed["backward_s"]
    return {name: seconds / rule for name, seconds in timed["extras_s"].items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lathe", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--launcher", default=os.path.join(os.path.dirname(__file__), "..", "scripts", "run_ranks.sh"))
    parser.add_argument("--meshes", nargs="+", default=["fsdp=2", "context=2"])
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--row-length", type=int, default=2048)
    parser.add_argument("--rows-per-micro-batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        rollouts = os.path.join(folder, "rollouts.jsonl")
        make_rollouts(rollouts, args)
        for text in args.meshes:
            mesh = {axis: int(size) for axis, size in (part.split("=") for part in text.split(","))}
            ranks = 1
            for size in mesh.values():
                ranks *= size
            ratios = []
            for _ in range(args.repeats):
                one = train(args, folder, rollouts, {}, ranks, 1)
                many = train(args, folder, rollouts, mesh, 1, ranks)
                ratios.append(many["rate"] / one["rate"])
                print(f"{text:12} {many['rate']:7.0f} tokens/s   one rank {one['rate']:7.0f}   ratio {ratios[-1]:.3f}   "
                      f"rows {100 * many['fill']:.1f} % full, {many['micro_batches']:.0f} micro-batches", flush=True)
            print(f"{text:12} ratio {statistics.median(ratios):.3f} (median)   weights, gradients, optimizer state "
                  f"{many['state'] / 2**20:.0f} MiB a rank, {one['state'] / 2**20:.0f} MiB on one: times ranks "
                  f"{many['state'] * ranks / one['state']:.3f}   peak {many['peak'] / 2**20:.0f} and {one['peak'] / 2**20:.0f} MiB")
            shares = sweep_share(args, mesh["context"]) if mesh.get("context", 1) > 1 else None
            if shares:
                print(f"{text:12} of the delta rule's forward and backward on a shard: "
                      + ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items()))


if __name__ == "__main__":
    main()
