"""A Hugging Face folder of the Llama architecture as a GGUF file in bf16, without a bit changed."""

import json
import pathlib

import gguf
import numpy as np

LAYER_TENSORS = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down"}
TENSORS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def read_tensors(file):
    """bf16 bits by name"""
    data = np.memmap(file, np.uint8, "r")
    header_bytes = int(data[:8].view("<u8")[0])
    header = json.loads(bytes(data[8:8 + header_bytes]))
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if entry["dtype"] != "BF16":
            raise SystemExit(f"error: {file}: {name} is {entry['dtype']}; use a BF16 checkpoint")
        begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
        yield name, data[begin:end].view(np.uint16).reshape(entry["shape"])


def gguf_name(name):
    parts = name.removesuffix(".weight").split(".")
    if parts[:2] == ["model", "layers"]:
        return f"blk.{parts[2]}.{LAYER_TENSORS['.'.join(parts[3:])]}.weight"
    return TENSORS[".".join(parts)] + ".weight"


def permute(rows, num_heads):
    """The order of llama.cpp, whose rotary embedding turns neighbours."""
    halves = rows.reshape(num_heads, 2, -1, rows.shape[-1])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def add_settings(writer, config):
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def add_tokenizer(writer, folder, config):
    """llama.cpp wants one, although the benchmark feeds token ids."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    vocab = tokenizer["model"]["vocab"]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    tokens = sorted(vocab, key=vocab.get)
    kinds = [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])


def convert(folder: pathlib.Path, out: pathlib.Path):
    config = json.loads((folder / "config.json").read_text())
    if config["architectures"] != ["LlamaForCausalLM"]:
        raise SystemExit(f"error: {folder} is {config['architectures']}; use a LlamaForCausalLM")
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    out.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(out, "llama")
    add_settings(writer, config)
    add_tokenizer(writer, folder, config)
    for name, bits in read_tensors(folder / "model.safetensors"):
        target = gguf_name(name)
        kind = target.split(".")[-2]
        if kind in heads:
            bits = permute(bits, heads[kind])
        if bits.ndim == 1:  # norms, which llama.cpp multiplies in float
            writer.add_tensor(target, (bits.astype(np.uint32) << 16).view(np.float32))
        else:
            writer.add_tensor(target, np.ascontiguousarray(bits).view(np.uint8),
                              raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
