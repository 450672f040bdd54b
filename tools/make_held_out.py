#!/usr/bin/env python3
"""Samples examples/arithmetic/held_out.jsonl: answers of the demo model to prompts that no rollout file contains.

    python3 tools/make_held_out.py

Needs torch, transformers and tokenizers. The committed file was made by this script with torch 2.15.0 and
transformers 5.24.0 on a CPU, one thread, with the defaults below; other versions may sample other answers.

Plain softmax sampling at temperature 1, without a cache: every new token is one pass over the whole sequence, so that
nothing but the published forward pass decides what is sampled. Prompts of one length make one batch; there is no
padding. The reward is 1 when the answer ends and what follows its last ':' is the right number, else 0.
"""
import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

import torch
import transformers

DEMO = Path(__file__).resolve().parent.parent / "examples" / "arithmetic"


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", type=Path, default=DEMO / "model")
    p.add_argument("--prompts", type=Path, default=DEMO / "eval_prompts.jsonl")
    p.add_argument("--out", type=Path, default=DEMO / "held_out.jsonl")
    p.add_argument("--count", type=int, default=64, help="how many prompts, from the first (default: %(default)s)")
    p.add_argument("--samples", type=int, default=4, help="answers to each (default: %(default)s)")
    p.add_argument("--max-new-tokens", type=int, default=40)
    p.add_argument("--seed", type=int, default=20260)
    return p.parse_args()


def refuse_trained_prompts(prompts, folder):
    trained = set()
    for path in sorted(folder.glob("*.jsonl")):
        trained |= {tuple(json.loads(line)["prompt_ids"]) for line in path.read_text().splitlines()}
    shared = [p["prompt"] for p in prompts if tuple(p["prompt_ids"]) in trained]
    if not trained or shared:
        sys.exit(f"not held out: {len(shared)} of the prompts are in {folder}" if trained else f"no rollouts in {folder}")


@torch.no_grad()
def sample_batch(model, prompt_ids, end_id, limit, generator):
    """prompt_ids: rows of one length. Returns (ids, logprobs, ended) of every row; the end token is included."""
    rows = torch.tensor(prompt_ids)
    drawn = [([], []) for _ in prompt_ids]
    ended = [False] * len(prompt_ids)
    for _ in range(limit):
        logprobs = torch.log_softmax(model(input_ids=rows, use_cache=False).logits[:, -1].float(), dim=-1)
        tokens = torch.multinomial(logprobs.exp(), 1, generator=generator)
        for row, token in enumerate(tokens[:, 0].tolist()):
            if not ended[row]:
                drawn[row][0].append(token)
                drawn[row][1].append(float(f"{logprobs[row, token].item():.6g}"))
                ended[row] = token == end_id
        if all(ended):
            break
        rows = torch.cat([rows, tokens], dim=1)
    return [(ids, values, done) for (ids, values), done in zip(drawn, ended)]


def main():
    args = arguments()
    torch.set_num_threads(1)
    prompts = [json.loads(line) for line in args.prompts.read_text().splitlines()][:args.count]
    refuse_trained_prompts(prompts, args.prompts.parent / "rollouts")
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    generator = torch.Generator().manual_seed(args.seed)

    by_length = defaultdict(list)
    for i, prompt in enumerate(prompts):
        by_length[len(prompt["prompt_ids"])] += [i] * args.samples
    lines = defaultdict(list)
    for length, owners in sorted(by_length.items()):
        batch = [prompts[i]["prompt_ids"] for i in owners]
        answers = sample_batch(model, batch, model.config.eos_token_id, args.max_new_tokens, generator)
        for i, (ids, logprobs, done) in zip(owners, answers):
            text = tokenizer.decode(ids[:-1] if done else ids)
            right = done and text.split(":")[-1] == prompts[i]["answer"]
            lines[i].append({
                "group_id": f"held-out-{i:03d}", "env": prompts[i]["env"], "prompt": prompts[i]["prompt"],
                "completion": text, "reward": float(right), "status": "completed" if done else "truncated",
                "temperature": 1.0, "prompt_ids": prompts[i]["prompt_ids"], "completion_ids": ids,
                "rollout_logprobs": logprobs})
    with open(args.out, "w", encoding="utf-8") as f:
        for i in range(len(prompts)):
            for line in lines[i]:
                f.write(json.dumps(line, separators=(",", ":")) + "\n")
    rewards = [line["reward"] for group in lines.values() for line in group]
    print(f"{args.out}: {len(rewards)} answers, {sum(rewards):.0f} right; torch {torch.__version__}, "
          f"transformers {transformers.__version__}, seed {args.seed}")


if __name__ == "__main__":
    main()
