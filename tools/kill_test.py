#!/usr/bin/env python3
"""Kills a training run with SIGKILL at random moments and checks that the same command always goes on from a complete
checkpoint, and that the run ends with the bits of one that was never killed.

    tools/kill_test.py --lathe build/release/src/lathe/cli/lathe [--kills 50] [--steps N] [--seed 1] [--folder DIR]

It trains the small model of tests/goldens/qwen3_5_moe and saves after every step, so that many kills fall into a save.
Exit 1, with the folder kept, at the first difference.
"""
import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "goldens" / "qwen3_5_moe"
COMPARED = ["model.safetensors", "trainer/optimizer.safetensors"]


def run_file(folder, steps):
    path = folder / "run.yaml"
    path.write_text(f"""model: {{path: {GOLDEN / "model"}, compute_dtype: f32}}
data: {{rollouts: {GOLDEN / "rollouts.jsonl"}, row_length: 256, trajectories_per_step: 4}}
optimizer: {{learning_rate: 1.0e-4, schedule: cosine, warmup_steps: 3}}
run: {{dir: run, steps: {steps}, threads: 1, save_every: 1}}
""")
    return path


def start(lathe, run_yaml, run_dir):
    return subprocess.Popen([lathe, "train", str(run_yaml), "--set", f"run.dir={run_dir}"],
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def lines(run_dir):
    try:
        return (run_dir / "metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def metrics(run_dir):
    out = []
    for text in (run_dir / "metrics.jsonl").read_text().splitlines():
        values = json.loads(text)
        out.append({k: v for k, v in values.items() if not k.startswith(("time", "perf/")) and "." not in k})
    return out


def complete(run_dir):
    return sorted(p.name for p in (run_dir / "checkpoints").glob("step_*") if (p / "COMPLETE").exists())


def leftovers(run_dir):
    return sum(1 for p in (run_dir / "checkpoints").glob(".t*"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lathe", required=True)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, help="default: 3 for each kill")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="default: a temporary one")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    steps = args.steps or 3 * args.kills
    folder = args.folder or Path(tempfile.mkdtemp(prefix="lathe_kill_test."))
    folder.mkdir(parents=True, exist_ok=True)
    run_yaml = run_file(folder, steps)
    straight, killed = folder / "straight", folder / "killed"

    def fail(message):
        sys.exit(f"tools/kill_test.py: {message}; everything is in {folder}")

    whole = start(args.lathe, run_yaml, straight)
    if whole.communicate() and whole.returncode:
        fail(f"the run without kills ended with {whole.returncode}")
    kills = in_saves = 0
    while kills < args.kills:
        before = complete(killed)
        process = start(args.lathe, run_yaml, killed)
        had = lines(killed)
        while process.poll() is None and lines(killed) == had:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.03)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        error = process.communicate()[1]
        if process.returncode == 0:
            break
        if process.returncode != -signal.SIGKILL:
            fail(f"after {kills} kills the run ended with {process.returncode}: {error[-500:]}")
        kills += 1
        in_saves += leftovers(killed) > 0
        if before and (not complete(killed) or complete(killed)[-1] < before[-1]):
            fail(f"kill {kills} lost {before[-1]}: {complete(killed)}")
    last = start(args.lathe, run_yaml, killed)
    error = last.communicate()[1]
    if last.returncode:
        fail(f"after {kills} kills the run ended with {last.returncode}: {error[-500:]}")
    name = f"step_{steps:06d}"
    for file in COMPARED:
        if (straight / "checkpoints" / name / file).read_bytes() != (killed / "checkpoints" / name / file).read_bytes():
            fail(f"{file} differs")
    if metrics(straight) != metrics(killed):
        fail("metrics.jsonl differs")
    print(f"{kills} kills, {in_saves} of them within a save: {steps} steps with the same weights, moments and metrics")
    if not args.folder:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
