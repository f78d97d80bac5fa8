#!/usr/bin/env python3
"""Writes seeded random checkpoints of every architecture, and what transformers answers with them.

    python3 make_models.py             every model of specs.py, into this folder
    python3 make_models.py llama-yarn-rope-sharded qwen3-tied
    python3 make_models.py --check     makes them elsewhere and compares: log-probabilities within 1e-4, the rest
                                       exactly; exit status 77 (skipped) with other versions of the packages

Each folder has what a Hugging Face folder has and golden.json: prompts (token ids), greedy tokens,
log-probabilities. Reference arithmetic is float32 on the weights as an engine holds them: matrices
of fp16 and fp32 files rounded to bf16, FP8 blocks multiplied out and rounded to bf16, MXFP4 unpacked by
transformers itself. golden.json
names the versions of transformers and torch that it was made with; requirements.txt installs them.
"""

import argparse
import json
import pathlib
import shutil
import sys
import tempfile

SKIPPED = 77

try:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as missing:
    print(f"SKIPPED make_models: {missing}; install requirements.txt")
    sys.exit(SKIPPED)

import oracle
import weights
from specs import SPECS

HERE = pathlib.Path(__file__).resolve().parent


def make_config(spec):
    config_class = getattr(transformers, spec.architecture).config_class
    return config_class(**spec.config)


def write_json(file, content):
    file.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def save_checkpoint(spec, folder):
    model = getattr(transformers, spec.architecture)(make_config(spec)).eval()
    weights.fill(model, spec)
    dtype = getattr(torch, spec.dtype)
    tensors = list(model.named_parameters()) + list(model.named_buffers())
    for name, tensor in tensors:
        if not name.endswith(("inv_freq", *spec.keep_float32)):
            tensor.data = tensor.data.to(dtype)
    model.config.dtype = dtype
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=spec.text_config["bos_token_id"], eos_token_id=spec.text_config["eos_token_id"], do_sample=False)
    model.save_pretrained(folder, max_shard_size=spec.shard_bytes or "5GB")
    config = json.loads((folder / "config.json").read_text())
    config["dtype"] = spec.dtype
    if spec.published_form:
        to_published_form(config, spec)
    write_json(folder / "config.json", config)


def to_published_form(config, spec):
    rope = config.pop("rope_parameters")
    config["torch_dtype"] = config.pop("dtype")
    config["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    if (factor := rope.pop("partial_rotary_factor", None)) and "rotary_dim" not in spec.published_keys:
        config["partial_rotary_factor"] = factor
    config["rope_scaling"] = None if kind == "default" else {spec.published_rope_type_key: kind, **rope}
    for ours, theirs in spec.published_names.items():
        config[theirs] = config.pop(ours)
    config.update(spec.published_keys)


def quantise_checkpoint(spec, folder, reference_folder):
    """The folder's matrices become FP8; the reference folder gets what those stand for."""
    shutil.copytree(folder, reference_folder, dirs_exist_ok=True)
    stored, meant = weights.quantise(load_file(folder / "model.safetensors"), spec)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(meant, reference_folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                     "weight_block_size": [weights.BLOCK, weights.BLOCK]}
    if spec.not_quantised:
        config["quantization_config"]["modules_to_not_convert"] = list(spec.not_quantised)
    write_json(folder / "config.json", config)


def quantise_experts(spec, folder):
    save_file(weights.quantise_mxfp4(load_file(folder / "model.safetensors"), spec), folder / "model.safetensors",
              metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": list(spec.not_quantised)}
    write_json(folder / "config.json", config)


def add_tensors(file, tensors):
    save_file({**load_file(file), **tensors}, file, metadata={"format": "pt"})


def load_reference(spec, folder):
    how = {"quantization_config": transformers.Mxfp4Config(dequantize=True)} if spec.mxfp4 else {}
    model, info = getattr(transformers, spec.architecture).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
        output_loading_info=True, **how)
    if problems := {key: value for key, value in info.items() if value}:
        raise SystemExit(f"{spec.name}: transformers does not read its own checkpoint: {problems}")
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2 and not name.endswith(spec.keep_float32 or "\0"):
            parameter.data = parameter.data.to(torch.bfloat16).float()
    # The published form must mean the same.
    got_config, expected = model.config.get_text_config(), make_config(spec).get_text_config()
    for key in spec.text_config:
        got, want = getattr(got_config, key), getattr(expected, key)
        if key == "rope_parameters":
            got, want = ({k: v for k, v in x.items() if k != "type"} for x in (got, want))
        if got != want:
            raise SystemExit(f"{spec.name}: config.json gives {key} = {got}, not {want}")
    return model.eval()


def make(spec, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_checkpoint(spec, folder)
    with tempfile.TemporaryDirectory() as scratch:
        reference_folder = folder
        if spec.fp8:
            reference_folder = pathlib.Path(scratch)
            quantise_checkpoint(spec, folder, reference_folder)
        if spec.mxfp4:
            quantise_experts(spec, folder)
        model = load_reference(spec, reference_folder)
    if spec.prediction_layer:
        add_tensors(folder / "model.safetensors", weights.prediction_layer(spec))
    prompts = oracle.golden(model, spec, spec.seed)
    head = {"model": spec.name, **versions(), "dtype": "float32 arithmetic on weights rounded to bfloat16",
            "decoding": "greedy", "max_new_tokens": oracle.NEW_TOKENS, "stop_ids": [], "logprob": "natural log",
            "bfloat16_error": oracle.bfloat16_error(model, prompts, spec.keep_float32)}
    lines = [f"{json.dumps(key)}: {json.dumps(content)}" for key, content in head.items()]
    lines.append('"prompts": [\n' + ",\n".join(json.dumps(prompt) for prompt in prompts) + "\n]")
    (folder / "golden.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{spec.name}: {size} bytes, {len(list(folder.glob('*.safetensors')))} file(s), smallest lead "
          f"{min(prompt['gap']['value'] for prompt in prompts)}", flush=True)


def versions():
    return {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]}


def without_log_probabilities(golden):
    """(all but them, them); without the error of bf16, which depends on the processor"""
    numbers = []
    golden.pop("bfloat16_error", None)
    for prompt in golden["prompts"]:
        numbers += [pair[1] for position in prompt["top"] for pair in position] + [prompt["gap"].pop("value")]
        prompt["top"] = [[pair[0] for pair in position] for position in prompt["top"]]
    return golden, numbers


def is_same(made, committed):
    if not (made.exists() and committed.exists()):
        return False
    if made.name != "golden.json":
        return made.read_bytes() == committed.read_bytes()
    (text, numbers), (other_text, other_numbers) = (
        without_log_probabilities(json.loads(file.read_text())) for file in (made, committed))
    return text == other_text and all(abs(a - b) <= 1e-4 for a, b in zip(numbers, other_numbers, strict=True))


def check(specs):
    """Files that differ, by name."""
    differing = []
    with tempfile.TemporaryDirectory() as scratch:
        for spec in specs:
            made, committed = pathlib.Path(scratch) / spec.name, HERE / spec.name
            make(spec, made)
            names = {file.name for folder in (made, committed) if folder.is_dir() for file in folder.iterdir()}
            differing += [f"{spec.name}/{name}" for name in sorted(names) if not is_same(made / name, committed / name)]
    return differing


def skip_other_versions(specs):
    for spec in specs:
        golden = json.loads((HERE / spec.name / "golden.json").read_text())
        if other := {key: golden[key] for key, version in versions().items() if golden[key] != version}:
            print(f"SKIPPED make_models: {spec.name} was made with {other}, here are {versions()}")
            sys.exit(SKIPPED)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="models of specs.py; all if none is named")
    parser.add_argument("--check", action="store_true", help="compare with the committed files")
    args = parser.parse_args()
    known = {spec.name: spec for spec in SPECS}
    if unknown := [name for name in args.names if name not in known]:
        parser.error(f"unknown: {', '.join(unknown)}; use {', '.join(known)}")
    chosen = [known[name] for name in args.names] or SPECS
    torch.set_num_threads(1)  # one order of addition
    transformers.utils.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    if args.check:
        skip_other_versions(chosen)
        if differing := check(chosen):
            sys.exit("not as committed: " + ", ".join(differing))
        print(f"{len(chosen)} models are as committed")
        return
    for spec in chosen:
        make(spec, HERE / spec.name)


if __name__ == "__main__":
    main()
