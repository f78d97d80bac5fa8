"""SmolLM2-135M-Instruct, served by a cluster of processes, against transformers on the same folder.

Usage: smollm2_test.py FASTFD, in the root of the sources. Twenty prompts, greedily, in float32: chats
through the model's template and plain texts. The same number of prompt tokens, the same text, the
same end, and every token's log-probability within 2e-3; all at once, and then some one by one.
Exits with 77 (skipped) without transformers and torch, or before scripts/fetch-smollm2 has run.
"""

import concurrent.futures
import pathlib
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "support"))
from launched_cluster import Cluster, post  # noqa: E402

SKIPPED = 77
MODEL = pathlib.Path("models/smollm2-135m-instruct")
CONFIG = pathlib.Path("configs/smollm2.yaml")
NEW_TOKENS = 32
TOLERANCE = 2e-3

CHATS = [
    [("user", "What is the capital of France?")],
    [("user", "Write one sentence about the sea.")],
    [("user", "Give me three names for a cat.")],
    [("system", "You answer in one word."), ("user", "What colour is the sky?")],
    [("system", "You are a pirate."), ("user", "Introduce yourself.")],
    [("user", "My name is Ada."), ("assistant", "Hello Ada! How can I help you?"), ("user", "What is my name?")],
    [("user", "Translate to German: good morning")],
    [("user", "How many legs does a spider have?")],
    [("user", "Write a Python function that adds 1234 and 5678.")],
    [("user", "Summarise: The tortoise was slow but steady. The hare was fast and slept. The tortoise won.")],
    [("user", "List the days of the week."), ("assistant", "Monday, Tuesday, Wednesday"), ("user", "Go on.")],
    [("user", "¿Qué es la fotosíntesis? 🌱")],
]
TEXTS = [
    "Once upon a time",
    "The quick brown fox",
    "def fibonacci(n):\n    ",
    "The year 1969 was",
    "Water boils at 100 degrees",
    "  Two spaces,\ttab,\n\nnewlines and naïve Ünïcödé: ",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,",
    "In the beginning " * 60,
]


def load_reference():
    try:
        import torch
        import transformers
    except ImportError as missing:
        print(f"SKIPPED smollm2: {missing}; install tests/reference/models/requirements.txt")
        sys.exit(SKIPPED)
    if not (MODEL / "config.json").exists():
        print(f"SKIPPED smollm2: {MODEL} is not there; run scripts/fetch-smollm2")
        sys.exit(SKIPPED)
    transformers.utils.logging.disable_progress_bar()
    torch.set_grad_enabled(False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    return tokenizer, model


def expected_answer(tokenizer, model, ids):
    """What transformers says after `ids`, in the words of the endpoint."""
    import torch
    output = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=NEW_TOKENS)[0, len(ids):].tolist()
    rows = model(torch.tensor([ids + output])).logits[0, len(ids) - 1:-1].log_softmax(-1)
    logprobs = [float(row[token]) for row, token in zip(rows, output)]
    ended = output[-1] == tokenizer.eos_token_id
    return {"prompt_tokens": len(ids), "finish": "stop" if ended else "length",
            "text": tokenizer.decode(output[:-1] if ended else output), "logprobs": logprobs}


def chat_request(messages):
    return "/v1/chat/completions", {
        "messages": [{"role": role, "content": content} for role, content in messages], "logprobs": True}


def text_request(text):
    return "/v1/completions", {"prompt": text, "logprobs": 1}


def ask(address, path, body):
    common = {"model": "smollm2-135m-instruct", "temperature": 0, "max_tokens": NEW_TOKENS}
    status, reply = post(address, path, body | common)
    if status != 200:
        raise AssertionError(f"status {status}: {reply}")
    choice = reply["choices"][0]
    if "message" in choice:
        text, logprobs = choice["message"]["content"], [entry["logprob"] for entry in choice["logprobs"]["content"]]
    else:
        text, logprobs = choice["text"], choice["logprobs"]["token_logprobs"]
    return {"prompt_tokens": reply["usage"]["prompt_tokens"], "finish": choice["finish_reason"],
            "text": text, "logprobs": logprobs}


def problems(name, expected, actual):
    found = [f"{name}: {key} is {actual[key]!r}, not {expected[key]!r}"
             for key in ("prompt_tokens", "finish", "text") if actual[key] != expected[key]]
    # The token that ends the text need not be reported.
    for position, (a, b) in enumerate(zip(actual["logprobs"], expected["logprobs"])):
        if abs(a - b) > TOLERANCE:
            found.append(f"{name}: log-probability {position} is {a:.5f}, not {b:.5f}")
            break
    if not len(expected["logprobs"]) - 1 <= len(actual["logprobs"]) <= len(expected["logprobs"]):
        found.append(f"{name}: {len(actual['logprobs'])} log-probabilities, not {len(expected['logprobs'])}")
    return found


def write_config(file, attention_servers, ffn_servers):
    text = CONFIG.read_text().replace("precision: auto", "precision: float32")
    text = text.replace("attention: {servers: 1", f"attention: {{servers: {attention_servers}")
    file.write_text(text.replace("ffn: {servers: 1", f"ffn: {{servers: {ffn_servers}"))


def check_cluster(fastfd, config, requests, expected):
    cluster = Cluster(fastfd, config=str(config))
    try:
        cluster.wait_ready()
        with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
            together = list(pool.map(lambda request: ask(cluster.http, *request), requests))
        alone = [ask(cluster.http, *request) for request in requests[::5]]
    finally:
        cluster.close()
    found = []
    for name, wanted, actual in zip(range(1, len(requests) + 1), expected, together):
        found += problems(f"prompt {name} of {len(requests)} at once", wanted, actual)
    for name, wanted, actual in zip(range(1, len(requests) + 1, 5), expected[::5], alone):
        found += problems(f"prompt {name} alone", wanted, actual)
    worst = max(abs(a - b) for wanted, actual in zip(expected, together)
                for a, b in zip(actual["logprobs"], wanted["logprobs"]))
    print(f"{config.name}: {len(requests)} prompts, log-probabilities off by at most {worst:.1e}, "
          f"{len(found)} problems", flush=True)
    return found


def main():
    tokenizer, model = load_reference()
    ids = [tokenizer.apply_chat_template([{"role": role, "content": content} for role, content in messages],
                                         add_generation_prompt=True, return_dict=True)["input_ids"]
           for messages in CHATS]
    ids += [tokenizer(text)["input_ids"] for text in TEXTS]
    requests = [chat_request(messages) for messages in CHATS] + [text_request(text) for text in TEXTS]
    expected = [expected_answer(tokenizer, model, prompt) for prompt in ids]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for attention_servers, ffn_servers in ((1, 1), (2, 2)):
            config = pathlib.Path(folder) / f"{attention_servers}A{ffn_servers}F.yaml"
            write_config(config, attention_servers, ffn_servers)
            found += check_cluster(sys.argv[1], config, requests, expected)
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
