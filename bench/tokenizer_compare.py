#!/usr/bin/env python3
"""FastFD's tokenizer against Hugging Face `tokenizers`: encoding, one thread each, interleaved.

    python3 bench/tokenizer_compare.py BUILD/bench/tokenizer_bench [--model models/atlas-moe]

Each round one program encodes all documents, then the other. Prints megabytes per second of CPU time
(medians, with the spread of the rounds) and their ratio; the token counts must agree. `tokenizers`
runs encode_batch_fast, its fastest call: no offsets, one crossing into native code.
"""

import argparse
import os

os.environ["RAYON_NUM_THREADS"] = "1"  # before tokenizers is imported
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/reference/text"))


def prose(num_bytes):
    """English sentences with rare words and numbers, in documents of some kilobytes."""
    folder = ROOT / "models/atlas-moe"
    texts = [p["text"] + p["output_text"] for p in json.loads((folder / "golden.json").read_text())["prompts"]]
    texts.append((folder / "README.md").read_text())
    words = sorted({w for text in texts for w in text.split() if w.strip(".,").isalpha()})
    rng = random.Random(3)
    weights = [1.0 / (rank + 2) for rank in range(len(words))]
    rng.shuffle(weights)
    documents, size = [], 0
    while size < num_bytes:
        lines = []
        for _ in range(rng.randint(10, 60)):
            line = " ".join(rng.choices(words, weights, k=rng.randint(4, 20))).capitalize()
            if rng.random() < 0.2:
                line += f" in {rng.randint(0, 99999)}, about {rng.random() * 100:.2f}%"
            lines.append(line + ".")
        documents.append("\n".join(lines) if rng.random() < 0.5 else " ".join(lines))
        size += len(documents[-1])
    return documents


def code(num_bytes):
    documents = [path.read_text() for folder in ("src", "include", "models/atlas-moe/train")
                 for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".cpp", ".h", ".py")]
    result, size = [], 0
    while size < num_bytes:
        result.append(documents[len(result) % len(documents)])
        size += len(result[-1])
    return result


def scripts(num_bytes):
    import corpus
    rng = random.Random(4)
    sentences = [s for s in corpus.SENTENCES if any(c.isalpha() and ord(c) > 127 for c in s)]
    result, size = [], 0
    while size < num_bytes:
        result.append(" ".join(rng.choice(sentences) for _ in range(40)))
        size += len(result[-1].encode())
    return result


class Fastfd:
    name = "FastFD"

    def __init__(self, program, model, path):
        self.process = subprocess.Popen([program, model, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def round(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        seconds, num_bytes, num_tokens = self.process.stdout.readline().split()
        return float(seconds), int(num_bytes), int(num_tokens)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class HuggingFace:
    def __init__(self, model, documents):
        import tokenizers
        self.name = f"tokenizers {tokenizers.__version__}"
        self.tokenizer = tokenizers.Tokenizer.from_file(str(pathlib.Path(model) / "tokenizer.json"))
        self.documents = documents
        self.num_bytes = sum(len(d.encode()) for d in documents)

    def round(self):
        start = time.process_time()
        encodings = self.tokenizer.encode_batch_fast(self.documents, add_special_tokens=False)
        seconds = time.process_time() - start
        return seconds, self.num_bytes, sum(len(encoding.ids) for encoding in encodings)

    def close(self):
        pass


def compare(corpus_name, documents, args):
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        file.write(b"\0".join(d.encode() for d in documents))
        file.flush()
        rivals = [Fastfd(args.program, args.model, file.name), HuggingFace(args.model, documents)]
        rates = {rival: [] for rival in rivals}
        for i in range(args.rounds + 1):  # the first one warms up
            outcomes = [rival.round() for rival in rivals]
            if outcomes[0][1:] != outcomes[1][1:]:
                sys.exit(f"{corpus_name}: bytes and tokens differ: {outcomes[0][1:]} {outcomes[1][1:]}")
            for rival, (seconds, num_bytes, _) in zip(rivals, outcomes):
                if i > 0:
                    rates[rival].append(num_bytes / seconds / 1e6)
        for rival in rivals:
            rival.close()
    median = [statistics.median(rates[r]) for r in rivals]
    result = {"corpus": corpus_name, "megabytes": round(outcomes[0][1] / 1e6, 2), "ratio": round(median[0] / median[1], 2)}
    print(f"{corpus_name:10} {result['megabytes']:6.2f} MB, {outcomes[0][2]} tokens")
    for rival, value in zip(rivals, median):
        print(f"  {rival.name:20} {value:7.2f} MB/s   ({min(rates[rival]):.2f} .. {max(rates[rival]):.2f})")
    print(f"  ratio FastFD / tokenizers: {result['ratio']:.2f}x")
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--model", default=str(ROOT / "models/atlas-moe"))
    parser.add_argument("--megabytes", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="also write the results to this file")
    args = parser.parse_args()
    size = int(args.megabytes * 1e6)
    results = [compare(name, make(size), args) for name, make in
               (("prose", prose), ("code", code), ("scripts", scripts))]
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
