#!/usr/bin/env python3
"""Asks a running server for a model's golden prompts and compares the answers with those of
transformers (golden.json of the model folder). Needs the standard library only, so that it runs
where the server runs. Usage:

  golden_client.py --url http://127.0.0.1:8000 --model-dir models/atlas-moe [--at-once 8]

Prompts whose smallest lead along the path (gap) is at least 0.1 must be equal, and the
log-probabilities of their first tokens within 3e-2. Exit status 1 if one is not.
"""

import argparse
import concurrent.futures
import json
import pathlib
import sys
import urllib.request

SURE_GAP = 0.1
LOGPROB_TOLERANCE = 3e-2


def ask(url, model, prompt, max_tokens):
    body = {"model": model, "prompt": prompt["prompt_ids"], "max_tokens": max_tokens,
            "temperature": 0, "logprobs": 1}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)["choices"][0]


def compare(prompt, choice, special_texts):
    """(text equals, worst log-probability difference, what is wrong)"""
    expected = prompt["output_text"]
    for special in special_texts:
        expected = expected.replace(special, "")
    same = choice["text"] == expected and choice["finish_reason"] == prompt["finish"]
    worst = 0.0
    problems = []
    if prompt["gap"]["value"] < SURE_GAP:
        return same, worst, problems
    if not same:
        problems.append(f"{prompt['id']}: {choice['text']!r} ({choice['finish_reason']}) instead of "
                        f"{expected!r} ({prompt['finish']})")
    logprobs = choice["logprobs"] or {"token_logprobs": []}  # an answer may be empty
    for ours, top in zip(logprobs["token_logprobs"], prompt["top"]):
        worst = max(worst, abs(ours - top[0][1]))
    if worst > LOGPROB_TOLERANCE:
        problems.append(f"{prompt['id']}: a log-probability is off by {worst:.4f}")
    return same, worst, problems


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model-dir", type=pathlib.Path, required=True)
    parser.add_argument("--at-once", type=int, default=8)
    arguments = parser.parse_args()

    golden = json.loads((arguments.model_dir / "golden.json").read_text())
    tokenizer = json.loads((arguments.model_dir / "tokenizer.json").read_text())
    special = [token["content"] for token in tokenizer["added_tokens"] if token["special"]]
    with urllib.request.urlopen(arguments.url + "/v1/models", timeout=10) as response:
        model = json.load(response)["data"][0]["id"]

    with concurrent.futures.ThreadPoolExecutor(arguments.at_once) as pool:
        choices = list(pool.map(
            lambda prompt: ask(arguments.url, model, prompt, golden["max_new_tokens"]),
            golden["prompts"]))
    num_same = 0
    worst = 0.0
    problems = []
    for prompt, choice in zip(golden["prompts"], choices):
        same, off, wrong = compare(prompt, choice, special)
        num_same += same
        worst = max(worst, off)
        problems += wrong
    for problem in problems:
        print(problem)
    sure = sum(prompt["gap"]["value"] >= SURE_GAP for prompt in golden["prompts"])
    print(f"{num_same} of {len(golden['prompts'])} answers equal ({sure} had to be), "
          f"log-probabilities off by at most {worst:.4f}: {'FAILED' if problems else 'ok'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
