#!/usr/bin/env python3
"""Writes tokenizer_golden.json: what Hugging Face `tokenizers` makes of the texts in corpus.py.

    python3 make_tokenizer_golden.py ../../../models/atlas-moe/tokenizer.json

Needs `tokenizers` (0.23 wrote the committed file). Two small vocabularies are trained here, one of
bytes and one of characters with byte fallback, and used under several configurations in the style of
well-known models; the C++ test assembles the same tokenizer.json from `bpe` or `spm` and each
variant's parts.
"""

import copy
import json
import pathlib
import random
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
KIMI = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
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


# In the manner of SentencePiece: characters, spaces as U+2581, bytes for what has no token.
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPM_ADDED = [added("<unk>"), added("<s>"), added("</s>"), added("<|im_start|>"), added("<think>", special=False),
             added("  two", special=False), added("<sep>", lstrip=True, rstrip=True)]
PREPEND = {"type": "Sequence", "normalizers": [
    {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
SPACES = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
BYTE_FALLBACK, FUSE = {"type": "ByteFallback"}, {"type": "Fuse"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
BOS_ONLY = {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}


def metaspace(**fields):
    return {"type": "Metaspace", "replacement": "\u2581", **fields}


def decoders(*steps):
    return {"type": "Sequence", "decoders": list(steps)}


def spm(decoder, normalizer=None, pre_tokenizer=None, **parts):
    model = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, **parts.pop("model", {})}
    return {"vocabulary": "spm", "added_tokens": SPM_ADDED, "short": True, "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "decoder": decoder, "model": model, **parts}


def spm_variants():
    llama = decoders(SPACES, BYTE_FALLBACK, FUSE, STRIP)
    yield "llama2", spm(llama, normalizer=PREPEND, post_processor=BOS_ONLY, string_merges=True)
    yield "mistral", spm(llama, pre_tokenizer=metaspace(prepend_scheme="first", split=False))
    yield "metaspace-old", spm(decoders(BYTE_FALLBACK, metaspace(add_prefix_space=True)),
                               pre_tokenizer=metaspace(add_prefix_space=True))
    yield "metaspace-never", spm(decoders(metaspace(prepend_scheme="never"), BYTE_FALLBACK),
                                 pre_tokenizer=metaspace(prepend_scheme="never", split=True))
    yield "gemma", spm(decoders(SPACES, BYTE_FALLBACK, FUSE),
                       normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
                       pre_tokenizer=split(" ", "MergedWithPrevious", literal=True))
    yield "unknown", spm(decoders(FUSE, SPACES), normalizer=PREPEND,
                         model={"byte_fallback": False, "fuse_unk": False})
    yield "unknown-fused", spm(metaspace(prepend_scheme="first"), model={"byte_fallback": False, "ignore_merges": True},
                               pre_tokenizer=sequence({"type": "WhitespaceSplit"}, metaspace(prepend_scheme="first")))
    yield "words", spm(decoders(SPACES, BYTE_FALLBACK, FUSE), post_processor={
        "type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1], "trim_offsets": True,
        "add_prefix_space": True}, pre_tokenizer=sequence(
            {"type": "Whitespace"}, {"type": "CharDelimiterSplit", "delimiter": "e"}))


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
    yield "deepseek-v2", {"normalizer": {"type": "Sequence", "normalizers": []}, "short": True,
                          "pre_tokenizer": sequence(
        split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"),
        {"type": "Digits", "individual_digits": True}, byte_level())}
    yield "kimi", {"normalizer": None, "short": True, "pre_tokenizer": sequence(split(KIMI), byte_level())}
    yield "set-operations", {"normalizer": None, "short": True, "pre_tokenizer": sequence(split(
        r"[a-z&&[^aeiou]]+|[^\W&&\P{Lu}&&[^\d]]{2}|[\p{N}[,.]&&[^1]]+|[^a-z\W[0-9]]|[\s\H&&[[:punct:]]]|[[:^alnum:]]{1,2}|[[:print:]]"), byte_level())}
    for behavior in ["Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"]:
        yield "split-" + behavior, {"normalizer": {"type": "NFD"}, "short": True, "pre_tokenizer": sequence(
            split(r"[\s,.]", behavior), split("a", behavior, literal=True), byte_level())}
    yield "split-inverted", {"normalizer": {"type": "NFKC"}, "short": True, "pre_tokenizer": sequence(
        split(r"\w+|[^\w\s]+", "Removed", invert=True), byte_level(regex=True))}
    yield "oniguruma", {"normalizer": None, "short": True, "pre_tokenizer": sequence(
        split(r"\p{N}{1,2}+x?|\h{3}|[\h_]{4}|\p{Han}+|\u0440[\u0430-\u044f]|(?<=[[:upper:]])\W|^\s*#|\S{2,}?", "Isolated"),
        byte_level())}
    yield from spm_variants()


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


def train_spm():
    """The same with characters; and tokens of several spaces, as Llama has them."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    trainer = trainers.BpeTrainer(vocab_size=700, min_frequency=1, show_progress=False, limit_alphabet=120,
                                  special_tokens=["<unk>", "<s>", "</s>"] + BYTES)
    sentences = [sentence for sentence in corpus.SENTENCES + corpus.SENTENCES[4:12] * 3 if len(set(sentence)) > 3]
    tokenizer.train_from_iterator(sentences, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocab = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    merges = model["merges"]
    for spaces in ["\u2581", "\u2581" * 2, "\u2581" * 4]:
        if spaces * 2 not in vocab:
            vocab.append(spaces * 2)
            merges.append([spaces, spaces])
    return {"vocab": vocab, "merges": merges}


def assemble(vocabularies, parts):
    bpe = vocabularies[parts.get("vocabulary", "bpe")]
    first = len(bpe["vocab"])
    tokens = [dict(token, id=first + i) for i, token in enumerate(parts.get("added_tokens", CHATML))]
    post = copy.deepcopy(parts.get("post_processor"))
    if post and post["type"] == "Sequence":
        post["processors"][1]["special_tokens"]["<|endoftext|>"]["ids"] = [first]
    merges = [" ".join(m) for m in bpe["merges"]] if parts.get("string_merges") else bpe["merges"]
    byte_level_decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "ignore_merges": parts.get("ignore_merges", False), **parts.get("model", {}),
             "vocab": {token: i for i, token in enumerate(bpe["vocab"])}, "merges": merges}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens,
            "normalizer": parts["normalizer"], "pre_tokenizer": parts["pre_tokenizer"], "post_processor": post,
            "decoder": parts.get("decoder", byte_level_decoder), "model": model}


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


def token_lists(tokenizer):
    """Lists with runs of fallback bytes: characters, several of them, parts of one, bytes that are none."""
    byte_ids = {byte: tokenizer.token_to_id(token) for byte, token in enumerate(BYTES)}
    space = tokenizer.token_to_id("\u2581")
    rng, lists = random.Random(3), [[], [space], [space, space, 300], [300, space]]
    for data in ["\u4f60\u597d".encode(), "\U0001f680!".encode(), b"\xe4\xbd", b"\xe4\xbda", b"\xff\xfe", b"a\x80b"]:
        run = [byte_ids[byte] for byte in data]
        lists += [run, [space] + run, [300] + run + [301], run + [1] + run, [2] + run + [space]]
    for _ in range(12):
        lists.append([rng.choice([rng.randrange(3, 259), rng.randrange(0, 720)]) for _ in range(rng.randrange(1, 16))])
    return lists


def golden_of(tokenizer, texts, parts):
    result = {"ids": [encode(tokenizer, text) for text in texts]}
    result["decoded"] = [tokenizer.decode(ids, skip_special_tokens=True) for ids in result["ids"][:40]]
    if "vocabulary" in parts:
        lists = token_lists(tokenizer)
        result["token_lists"] = [[ids, tokenizer.decode(ids, skip_special_tokens=True)] for ids in lists]
        result["with_post"] = encode(tokenizer, "Hello", add=True)
    if not parts.get("short"):
        result["plain_ids"] = [encode(tokenizer, t, special=False) for t in texts if "<" in t]
        result["with_post"] = encode(tokenizer, "Hello", add=True)
        result["long"] = [[len(ids), str(fnv(ids))] for ids in
                          (encode(tokenizer, piece * count) for piece, count in corpus.LONG)]
    return result


def main():
    vocabularies = {"bpe": train(), "spm": train_spm()}
    invalid = [data.decode("utf-8", errors="replace") for data in corpus.INVALID]
    texts = corpus.SENTENCES + corpus.random_texts(30, seed=7)
    out = {**vocabularies, "texts": texts, "invalid": [data.hex() for data in corpus.INVALID],
           "invalid_text": invalid, "long": corpus.LONG, "variants": []}
    for name, parts in variants():
        tokenizer = Tokenizer.from_str(json.dumps(assemble(vocabularies, parts)))
        tokenizer_json = {k: v for k, v in assemble(vocabularies, parts).items()
                          if k in ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder")}
        for token in tokenizer_json["added_tokens"]:  # one that is in the vocabulary keeps its id
            token["id"] = tokenizer.token_to_id(token["content"])
        entry = {"name": name, "tokenizer": tokenizer_json, "ignore_merges": parts.get("ignore_merges", False),
                 "string_merges": parts.get("string_merges", False), "model": parts.get("model", {}),
                 "vocabulary": parts.get("vocabulary", "bpe"),
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
