"""What transformers answers: greedy tokens and log-probabilities in float32."""

import numpy as np
import torch

NEW_TOKENS = 24
TOP_FIRST, TOP_LATER = 20, 5
# One token alone, a few, more than a page, more than a chunk; two that begin alike.
LENGTHS = (1, 2, 9, 33, 70, 130)
SHARED = (48, 71)  # tokens of a prefix, length of a second prompt that has it
# Another engine adds in another order, so a path without near-ties is one that it must reproduce.
SMALLEST_LEAD = 0.02
# Where rounding to bf16 should not change the token.
CLEAR_LEAD = 0.1
# A model that only repeats itself would hide much.
FEWEST_DISTINCT = 8


class Routes:
    """Counts the experts that were used, a layer."""

    def __init__(self, model):
        self.used = {}
        for name, module in model.named_modules():
            if name.endswith(".experts"):
                module.register_forward_pre_hook(self.hook(name), with_kwargs=True)

    def hook(self, name):
        def note(_, args, kwargs):
            routes = args[1] if len(args) > 1 else kwargs.get("top_k_index", kwargs.get("router_indices"))
            self.used.setdefault(name, set()).update(routes.flatten().tolist())
        return note


def log_probabilities(model, ids):
    """After the last of `ids`; the whole prompt anew each time: nothing cached that could be wrong."""
    return model(torch.tensor([ids]), use_cache=False).logits[0, -1].float().log_softmax(-1)


def top(row, count):
    best = row.topk(count)
    return [[int(i), round(float(v), 5)] for i, v in zip(best.indices, best.values)]


def answer(model, prompt):
    """(tokens, likeliest of each position, least lead and where it is)"""
    ids, tops, leads = list(prompt), [], []
    for position in range(NEW_TOKENS):
        row = log_probabilities(model, ids)
        tops.append(top(row, TOP_LATER if position else TOP_FIRST))
        two = row.topk(2).values
        leads.append(float(two[0] - two[1]))
        ids.append(tops[-1][0][0])
    least = min(range(NEW_TOKENS), key=leads.__getitem__)
    return ids[len(prompt):], tops, {"position": least, "value": round(leads[least], 5)}


def make_prompts(model, vocabulary, seed):
    """Random ones; where the answer has a near-tie or repeats itself, another."""
    generator = np.random.RandomState(seed)
    prompts = []

    def add(name, length, prefix=()):
        for _ in range(100):
            rest = generator.randint(2, vocabulary, length - len(prefix)).tolist()
            prompt = list(prefix) + rest
            tokens, tops, gap = answer(model, prompt)
            if gap["value"] >= SMALLEST_LEAD and len(set(tokens)) >= FEWEST_DISTINCT:
                prompts.append({"id": name, "prompt_ids": prompt, "output_ids": tokens, "finish": "length",
                                "gap": gap, "top": tops})
                return
        raise SystemExit(f"{name}: no prompt of {length} tokens with an answer to compare")

    for length in LENGTHS:
        add(f"{length} tokens", length)
    shared, length = SHARED
    add(f"{length} tokens, the first {shared} as those of 70", length, prompts[4]["prompt_ids"][:shared])
    return prompts


@torch.no_grad()
def golden(model, spec, seed):
    routes = Routes(model)
    prompts = make_prompts(model, spec.text_config["vocab_size"], seed)
    for layer, used in routes.used.items():
        num_experts = model.get_submodule(layer).num_experts
        if used != set(range(num_experts)):
            raise SystemExit(f"{spec.name}: {layer}: experts {sorted(used)} of {num_experts} are used; change its seed")
    return prompts


@torch.no_grad()
def bfloat16_error(model, prompts, keep_float32):
    """What transformers' own bf16 arithmetic makes of the same answers, where the lead is clear: how far the
    log-probability of float32's token is off (median, 90th percentile), how often another token is likelier.
    Changes the model."""
    for name, parameter in model.named_parameters():
        if not name.endswith(keep_float32 or "\0"):
            parameter.data = parameter.data.to(torch.bfloat16)
    errors, different = [], 0
    for prompt in prompts:
        ids, length = prompt["prompt_ids"] + prompt["output_ids"], len(prompt["prompt_ids"])
        rows = model(torch.tensor([ids]), use_cache=False).logits[0].float().log_softmax(-1)
        for position, (token, likeliest) in enumerate(zip(prompt["output_ids"], prompt["top"])):
            if likeliest[0][1] - likeliest[1][1] >= CLEAR_LEAD:
                row = rows[length - 1 + position]
                errors.append(abs(float(row[token]) - likeliest[0][1]))
                different += int(row.argmax()) != token
    errors.sort()
    return {"positions": len(errors), "median": round(errors[len(errors) // 2], 4),
            "p90": round(errors[len(errors) * 9 // 10], 4), "different": different}
