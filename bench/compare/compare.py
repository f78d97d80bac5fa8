#!/usr/bin/env python3
"""FastFD and llama.cpp (llama-cpp-python) with the same bf16 weights and the same number of threads.

    scripts/fetch-smollm2
    pip install -r bench/compare/requirements.txt        # compiles llama.cpp for this machine
    bench/compare/compare.py --fastfd build/release/fastfd --threads 2 --rounds 5

Prefill of one prompt of 512 tokens, decode of 1 and of 16 sequences from 32 to 96 tokens of context, in
tokens/s. The programs run one after the other, in turns; a row is the medians and the median of the rounds'
ratios. FastFD samples and schedules, llama.cpp is only fed tokens. Two forms of FastFD: both halves of the
model on one thread pool (`topology: colocated`), and one attention and one FFN server with half of the
threads each, which at batch 1 take turns at the arithmetic.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROMPT, CONTEXT, OUTPUT, BATCHES = 512, 32, 64, (1, 16)
POINTS = ["prefill", *(f"decode {batch}" for batch in BATCHES)]

CONFIG = """\
model: {{path: "{model}", precision: bf16, max_model_len: 1024}}
{topology}
attention: {{servers: 1, threads: {threads}, kv_cache: {{pages: 2048, page_size: 16, dtype: bf16}}}}
ffn: {{servers: 1, threads: {threads}}}
transport: {{kind: inproc, spin_us: {spin_us}}}
scheduler: {{microbatches: {lanes}, plan_ahead: 2, max_sequences: 32, max_batched_tokens: 512, prefill_chunk: 512}}
"""


def write_configs(folder, model, threads):
    """Cluster files by the name of their form."""
    texts = {"co-located": CONFIG.format(model=model, topology="topology: colocated", threads=threads, spin_us=0,
                                         lanes=1)}
    if threads % 2 == 0:
        texts["1A1F"] = CONFIG.format(model=model, topology="", threads=threads // 2, spin_us=200, lanes="auto")
    files = {}
    for form, text in texts.items():
        files[form] = pathlib.Path(folder) / f"{form}.yaml"
        files[form].write_text(text)
    return files


def run(command):
    result = subprocess.run([str(word) for word in command], check=False, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"error: {command[0]} failed:\n{result.stderr or result.stdout}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def time_fastfd(fastfd, config):
    def bench(batch, prompt, output):
        return run([fastfd, "bench", "offline", config, "--batch", batch, "--prompt-len", prompt, "--output-len",
                    output, "--repeat", 3, "--json"])
    result = {"prefill": PROMPT / bench(1, PROMPT, 1)["seconds"]}
    for batch in BATCHES:
        result[f"decode {batch}"] = bench(batch, CONTEXT, OUTPUT)["decode_tokens_per_s"]
    return result


def time_llama_cpp(file, threads):
    return run([sys.executable, HERE / "time_llama_cpp.py", file, threads, PROMPT, CONTEXT, OUTPUT, *BATCHES])


def make_gguf(model, folder):
    file = pathlib.Path(folder) / "model-bf16.gguf"
    try:
        import llama_cpp  # noqa: F401
        import to_gguf
    except ImportError as missing:
        sys.exit(f"error: {missing}; run `pip install -r {HERE / 'requirements.txt'}`")
    to_gguf.convert(model, file)
    return file


def print_table(rounds, forms):
    print(f"{'':12}{'llama.cpp':>12}" + "".join(f"{form:>14}{'ratio':>8}{'spread':>14}" for form in forms))
    for point in POINTS:
        line = f"{point:12}{statistics.median(r['llama.cpp'][point] for r in rounds):12.1f}"
        for form in forms:
            ratios = sorted(r[form][point] / r["llama.cpp"][point] for r in rounds)
            spread = f"{ratios[0]:.2f}-{ratios[-1]:.2f}"
            line += (f"{statistics.median(r[form][point] for r in rounds):14.1f}"
                     f"{statistics.median(ratios):7.2f}x{spread:>14}")
        print(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fastfd", type=pathlib.Path, default=ROOT / "build" / "release" / "fastfd")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models" / "smollm2-135m-instruct",
                        help="BF16 folder of a LlamaForCausalLM in one file (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of each program, in all (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="every round's figures")
    arguments = parser.parse_args()
    if not (arguments.model / "config.json").exists():
        parser.error(f"{arguments.model} is not there; run scripts/fetch-smollm2")
    with tempfile.TemporaryDirectory() as folder:
        gguf = make_gguf(arguments.model, folder)
        configs = write_configs(folder, arguments.model.resolve(), arguments.threads)
        rounds = []
        for _ in range(arguments.rounds):
            rounds.append({"llama.cpp": time_llama_cpp(gguf, arguments.threads)}
                          | {form: time_fastfd(arguments.fastfd, file) for form, file in configs.items()})
    if arguments.json:
        print(json.dumps(rounds))
    else:
        print_table(rounds, list(configs))


if __name__ == "__main__":
    main()
