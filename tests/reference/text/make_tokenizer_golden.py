#!/usr/bin/env python3
"""Writes tokenizer_golden.json: what Hugging Face `tokenizers` makes of the texts in corpus.py.

    python3 make_tokenizer_golden.py ../../../models/atlas-moe/tokenizer.json

Needs `tokenizers` (0.23 wrote the committed file). One small vocabulary is trained here and used
under several configurations in the style of well-known models; the C++ test assembles the same
tokenizer.json from `bpe` and each variant's parts.
"""

import copy
import json
import pathlib
import sys
import unicodedata

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

import corpus

HERE = pathlib.Path(__file__).resolve().parent

QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN2.replace(r"|\p{N}| ", r"|\p{N}{1,3}| ")
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
MULTI = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
         r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
         r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]


def split(pattern, behavior="Isolated", invert=False, literal=False):
    kind = "String" if literal else "Regex"
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def byte_level(prefix=False, regex=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def added(content, special=True, **flags):
    token = {"content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": special}
    token.update(flags)
    return token


CHATML = [added("<|endoftext|>"), added("<|im_start|>"), added("<|im_end|>")]
BOS = {"type": "Sequence", "processors": [
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
    {"type": "TemplateProcessing",
     "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
     "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
     "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": ["BOS"], "tokens": ["<|endoftext|>"]}}}]}


def variants():
    yield "qwen2", {"normalizer": {"type": "NFC"}, "pre_tokenizer": sequence(split(QWEN2), byte_level())}
    yield "llama3", {"normalizer": None, "pre_tokenizer": sequence(split(LLAMA3), byte_level()),
                     "ignore_merges": True, "string_merges": True, "post_processor": BOS}
    yield "gpt2", {"normalizer": None, "pre_tokenizer": byte_level(prefix=True, regex=True)}
    yield "smollm", {"normalizer": None, "pre_tokenizer": sequence(
        {"type": "Digits", "individual_digits": True}, byte_level(regex=True))}
    yield "multi-split", {"normalizer": {"type": "Sequence", "normalizers": []},
                          "pre_tokenizer": sequence(*[split(p) for p in MULTI], byte_level())}
    yield "o200k", {"normalizer": {"type": "NFC"}, "pre_tokenizer": sequence(split(O200K), byte_level())}
    yield "added", {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
        "pre_tokenizer": sequence(split(QWEN2), byte_level(prefix=True)),
        "added_tokens": CHATML + [
            added("<mask>", lstrip=True), added("<think>", special=False, rstrip=True),
            added("</think>", special=False, lstrip=True, rstrip=True),
            added("WORD", special=False, single_word=True), added("Cafe\u0301", special=False, normalized=True),
            added("norm", special=False, normalized=True, lstrip=True, rstrip=True), added("<|im_start|>user")]}
    yield "nfkd-strip", {
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "NFKD"}, {"type": "Strip", "strip_left": True, "strip_right": True},
            {"type": "Replace", "pattern": {"Regex": r"[\u0300-\u036f]"}, "content": ""},
            {"type": "Replace", "pattern": {"String": "  "}, "content": "\u2581"},
            {"type": "Prepend", "prepend": "_"}]},
        "pre_tokenizer": sequence({"type": "Punctuation", "behavior": "MergedWithPrevious"}, byte_level(regex=True))}
    for behavior in ["Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"]:
        yield "split-" + behavior, {"normalizer": {"type": "NFD"}, "short": True, "pre_tokenizer": sequence(
            split(r"[\s,.]", behavior), split("a", behavior, literal=True), byte_level())}
    yield "split-inverted", {"normalizer": {"type": "NFKC"}, "short": True, "pre_tokenizer": sequence(
        split(r"\w+|[^\w\s]+", "Removed", invert=True), byte_level(regex=True))}
    yield "oniguruma", {"normalizer": None, "short": True, "pre_tokenizer": sequence(
        split(r"\p{N}{1,2}+x?|\h{3}|[\h_]{4}|\p{Han}+|\u0440[\u0430-\u044f]|(?<=[[:upper:]])\W|^\s*#|\S{2,}?", "Isolated"),
        byte_level())}


def train():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=False)])
    trainer = trainers.BpeTrainer(vocab_size=900, min_frequency=1, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus.SENTENCES + corpus.SENTENCES[4:12] * 3, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocab = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    return {"vocab": vocab, "merges": model["merges"]}


def assemble(bpe, parts):
    first = len(bpe["vocab"])
    tokens = [dict(token, id=first + i) for i, token in enumerate(parts.get("added_tokens", CHATML))]
    post = copy.deepcopy(parts.get("post_processor"))
    if post:
        post["processors"][1]["special_tokens"]["<|endoftext|>"]["ids"] = [first]
    merges = [" ".join(m) for m in bpe["merges"]] if parts.get("string_merges") else bpe["merges"]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens,
            "normalizer": parts["normalizer"], "pre_tokenizer": parts["pre_tokenizer"], "post_processor": post,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "ignore_merges": parts.get("ignore_merges", False),
                      "vocab": {token: i for i, token in enumerate(bpe["vocab"])}, "merges": merges}}


def fnv(ids, value=0xCBF29CE484222325):
    for token in ids:
        for byte in token.to_bytes(4, "little"):
            value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def encode(tokenizer, text, special=True, add=False):
    tokenizer.encode_special_tokens = not special
    return tokenizer.encode(text, add_special_tokens=add).ids


def code_point_hashes(tokenizer):
    """Each assigned character in a small context, hashed by blocks of 1024 code points."""
    blocks = []
    for first in range(0, 0x110000, 1024):
        ranges, value = [], 0xCBF29CE484222325
        for c in range(first, first + 1024):
            if unicodedata.category(chr(c)) in ("Cn", "Cs", "Co"):
                continue
            if ranges and ranges[-1][1] == c - 1:
                ranges[-1][1] = c
            else:
                ranges.append([c, c])
            value = fnv(encode(tokenizer, f"a{chr(c)}{chr(c)} {chr(c)}1"), value)
        if ranges:
            blocks.append({"ranges": ranges, "hash": str(value)})
    return blocks


def golden_of(tokenizer, texts, parts):
    result = {"ids": [encode(tokenizer, text) for text in texts]}
    result["decoded"] = [tokenizer.decode(ids, skip_special_tokens=True) for ids in result["ids"][:40]]
    if not parts.get("short"):
        result["plain_ids"] = [encode(tokenizer, t, special=False) for t in texts if "<" in t]
        result["with_post"] = encode(tokenizer, "Hello", add=True)
        result["long"] = [[len(ids), str(fnv(ids))] for ids in
                          (encode(tokenizer, piece * count) for piece, count in corpus.LONG)]
    return result


def main():
    bpe = train()
    invalid = [data.decode("utf-8", errors="replace") for data in corpus.INVALID]
    texts = corpus.SENTENCES + corpus.random_texts(30, seed=7)
    out = {"bpe": bpe, "texts": texts, "invalid": [data.hex() for data in corpus.INVALID],
           "invalid_text": invalid, "long": corpus.LONG, "variants": []}
    for name, parts in variants():
        tokenizer = Tokenizer.from_str(json.dumps(assemble(bpe, parts)))
        tokenizer_json = {k: v for k, v in assemble(bpe, parts).items()
                          if k in ("added_tokens", "normalizer", "pre_tokenizer", "post_processor")}
        for token in tokenizer_json["added_tokens"]:  # one that is in the vocabulary keeps its id
            token["id"] = tokenizer.token_to_id(token["content"])
        entry = {"name": name, "tokenizer": tokenizer_json, "ignore_merges": parts.get("ignore_merges", False),
                 "string_merges": parts.get("string_merges", False),
                 "golden": golden_of(tokenizer, texts[:60] if parts.get("short") else texts, parts)}
        if name == "qwen2":
            entry["invalid_ids"] = [encode(tokenizer, text) for text in invalid]
            entry["code_points"] = code_point_hashes(tokenizer)
        out["variants"].append(entry)
    atlas = Tokenizer.from_file(sys.argv[1])
    out["atlas"] = {"ids": [encode(atlas, text) for text in texts]}
    path = HERE / "tokenizer_golden.json"
    path.write_text(json.dumps(out, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(f"{path.name}: {path.stat().st_size} bytes, {len(out['variants'])} variants, {len(texts)} texts")


if __name__ == "__main__":
    main()
