"""Seeded weights at which a random model has clear preferences, and their FP8 form."""

import math
import zlib

import numpy as np
import torch

BLOCK = 128
LARGEST_E4M3 = 448.0
TIED_NORM = 8.0  # the last norm's weights where the embedding is the LM head as well


def is_router(name):
    return name.endswith((".gate.weight", ".router.weight"))


def standard_deviation(name, inputs, tied):
    """Unit gain through the layers; decided attention, routes and logits."""
    if "conv1d" in name:
        return 0.5
    gain = 1.0
    if "embed_tokens" in name:
        # Tied: a token's own direction must not win every time.
        gain = 4.0 / TIED_NORM if tied else math.sqrt(inputs)
    elif "lm_head" in name:
        gain = 4.0
    elif is_router(name):
        gain = 2.0
    elif any(part in name for part in ("q_proj", "k_proj", "q_b_proj", "kv_a_proj")):
        gain = 1.6
    elif any(part in name for part in ("o_proj", "out_proj", "down_proj", "w2")):
        gain = 1.5
    return gain / math.sqrt(inputs)


def fill(model, spec):
    """Every tensor from a generator of its own, so that a change of one changes no other."""
    tensors = {**dict(model.named_parameters()),
               **{name: buffer for name, buffer in model.named_buffers() if name.endswith("correction_bias")}}
    for name, tensor in tensors.items():
        # A stream that numpy has frozen; torch's depends on the processor.
        generator = np.random.RandomState(zlib.crc32(f"{spec.name} {spec.seed} {name}".encode()))
        noise = torch.from_numpy(generator.standard_normal(tensor.shape)).float()
        uniform = torch.from_numpy(generator.random_sample(tensor.shape)).float()
        with torch.no_grad():
            tensor.copy_(value(name, tensor, noise, uniform, spec))


def value(name, tensor, noise, uniform, spec):
    if name.endswith("correction_bias"):
        return 0.2 * noise
    if name.endswith("A_log"):
        return (1.0 + 7.0 * uniform).log()
    if name.endswith("dt_bias"):
        return 3.0 * uniform - 3.0
    if name.endswith("sinks"):
        return noise
    if "norm" in name and tensor.dim() == 1:
        # Norms start at 1, or at 0 where 1 is added to them.
        start = TIED_NORM if spec.text_config["tie_word_embeddings"] and name.endswith("model.norm.weight") else tensor.round()
        return start + 0.1 * noise
    if "bias" in name:
        return 0.1 * noise
    inputs = tensor.shape[-2] if spec.architecture.startswith("GptOss") and ".experts." in name else tensor.shape[-1]
    return standard_deviation(name, inputs, spec.text_config["tie_word_embeddings"]) * noise


def is_kept(name, spec):
    """Stays as it is in an FP8 checkpoint."""
    parts = name.removesuffix(".weight").split(".")
    return any(entry in (".".join(parts), parts[-1]) for entry in spec.not_quantised)


def one_matrix_an_expert(name, tensor):
    """What published FP8 checkpoints have instead of a layer's stacked experts."""
    prefix, _, kind = name.rpartition(".")
    for expert, matrix in enumerate(tensor):
        if kind == "gate_up_proj":
            for part, half in zip(("gate_proj", "up_proj"), matrix.chunk(2)):
                yield f"{prefix}.{expert}.{part}.weight", half.contiguous()
        else:
            yield f"{prefix}.{expert}.{kind}.weight", matrix.contiguous()


def quantise(tensors, spec):
    """(what an FP8 checkpoint has instead, what that stands for). Linear layers' matrices become
    float8_e4m3fn with one float32 `weight_scale_inv` a block of 128 x 128: weight = fp8 * scale."""
    stored, meant = {}, {}
    for name, tensor in tensors.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            parts = {part: to_fp8(matrix) for part, matrix in one_matrix_an_expert(name, tensor)}
            for part, (fp8, scales, _) in parts.items():
                stored[part], stored[part + "_scale_inv"] = fp8, scales
            products = [product for _, _, product in parts.values()]
            meant[name] = torch.stack(products).view(tensor.shape)
            continue
        is_table = name.endswith(("embed_tokens.weight", "lm_head.weight"))
        if tensor.dim() != 2 or is_table or is_router(name) or is_kept(name, spec):
            stored[name] = meant[name] = tensor
            continue
        stored[name], stored[name + "_scale_inv"], meant[name] = to_fp8(tensor)
    return stored, meant


def to_fp8(tensor):
    """(e4m3, scales, what they stand for)"""
    rows, columns = tensor.shape
    blocks = -(-rows // BLOCK), -(-columns // BLOCK)
    padded = torch.zeros(blocks[0] * BLOCK, blocks[1] * BLOCK)
    padded[:rows, :columns] = tensor.float()
    tiles = padded.view(blocks[0], BLOCK, blocks[1], BLOCK)
    scales = tiles.abs().amax(dim=(1, 3)) / LARGEST_E4M3
    spread = scales[:, None, :, None]
    fp8 = (tiles / spread).clamp(-LARGEST_E4M3, LARGEST_E4M3).to(torch.float8_e4m3fn)
    # As transformers dequantises for a bf16 model.
    product = (fp8.float() * spread).view(padded.shape)[:rows, :columns]
    return (fp8.view(padded.shape)[:rows, :columns].contiguous(), scales, product.to(torch.bfloat16).contiguous())


FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
GROUP = 32


def quantise_mxfp4(tensors, spec):
    """What an MXFP4 checkpoint of gpt-oss has instead. Experts' matrices [experts, in, out] become `_blocks` [experts, out,
    in / 32, 16], two 4-bit floats a byte, and `_scales` [experts, out, in / 32], a biased power of two for 32 of them."""
    stored = {}
    for name, tensor in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")) or name.rpartition(".")[0] in spec.not_quantised:
            stored[name] = tensor
            continue
        rows = tensor.float().transpose(1, 2)
        groups = rows.reshape(*rows.shape[:-1], -1, GROUP)
        exponents = groups.abs().amax(-1).clamp(min=2.0**-100).log2().floor() - 2
        scaled = groups / exponents.exp2()[..., None]
        codes = (scaled.abs()[..., None] - FP4).abs().argmin(-1) + 8 * (scaled < 0)
        stored[name + "_blocks"] = (codes[..., ::2] + 16 * codes[..., 1::2]).to(torch.uint8).contiguous()
        stored[name + "_scales"] = (exponents + 127).to(torch.uint8).contiguous()
    return stored


def prediction_layer(spec):
    """What stands behind the last layer; nothing may read it."""
    hidden, prefix = spec.config["hidden_size"], f"model.layers.{spec.config['num_hidden_layers']}."
    return {prefix + "enorm.weight": torch.ones(hidden, dtype=torch.bfloat16),
            prefix + "hnorm.weight": torch.ones(hidden, dtype=torch.bfloat16),
            prefix + "eh_proj.weight": torch.full((hidden, 2 * hidden), 1000.0, dtype=torch.bfloat16)}
