"""Times llama.cpp through llama-cpp-python: one JSON object of tokens/s on standard output.

Usage: time_llama_cpp.py FILE.gguf THREADS PROMPT CONTEXT OUTPUT BATCH...
Prefill is one llama_decode of PROMPT tokens with the last one's logits; decode is OUTPUT steps of BATCH
sequences from CONTEXT tokens on, with every row's logits. Tokens are fed, not sampled: that work is left out.
"""

import ctypes
import json
import sys
import time

import llama_cpp


def make_context(model, threads, num_sequences, num_tokens):
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = num_tokens
    params.n_batch = params.n_ubatch = 512
    params.n_seq_max = num_sequences
    params.n_threads = params.n_threads_batch = threads
    params.no_perf = True
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise SystemExit("error: llama.cpp makes no context")
    return context


def decode(context, rows):
    """rows: (token, position, sequence, wants logits)"""
    batch = llama_cpp.llama_batch_init(len(rows), 0, 1)
    batch.n_tokens = len(rows)
    for i, (token, position, sequence, wants_logits) in enumerate(rows):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
        batch.seq_id[i][0] = sequence
        batch.logits[i] = wants_logits
    began = time.perf_counter()
    if llama_cpp.llama_decode(context, batch) != 0:
        raise SystemExit("error: llama_decode failed")
    llama_cpp.llama_synchronize(context)
    seconds = time.perf_counter() - began
    llama_cpp.llama_batch_free(batch)
    return seconds


def clear(context):
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)


def prefill_tokens_per_s(model, threads, prompt):
    context = make_context(model, threads, 1, 1024)
    seconds = []
    for _ in range(3):
        clear(context)
        rows = [(1000 + 7 * i, i, 0, i + 1 == prompt) for i in range(prompt)]
        seconds.append(decode(context, rows))
    llama_cpp.llama_free(context)
    return prompt / sorted(seconds[1:])[0]


def decode_tokens_per_s(model, threads, batch, context_len, output):
    context = make_context(model, threads, batch, (context_len + output) * batch + 256)
    for sequence in range(batch):
        decode(context, [(1000 + 7 * i + sequence, i, sequence, False) for i in range(context_len)])
    seconds = [decode(context, [(2000 + 11 * step + sequence, context_len + step, sequence, True)
                                for sequence in range(batch)]) for step in range(output)]
    llama_cpp.llama_free(context)
    return batch * output / sum(seconds)


def main():
    file, threads, prompt, context_len, output, *batches = sys.argv[1:]
    silent = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(file.encode(), params)
    if not model:
        raise SystemExit(f"error: llama.cpp can't load {file}")
    threads = int(threads)
    result = {"prefill": prefill_tokens_per_s(model, threads, int(prompt))}
    for batch in map(int, batches):
        result[f"decode {batch}"] = decode_tokens_per_s(model, threads, batch, int(context_len), int(output))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
