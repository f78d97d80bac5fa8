"""The models that make_models.py makes: shapes small enough to commit, and the odd ones on purpose."""

import dataclasses

BF16, F16, F32 = "bfloat16", "float16", "float32"


@dataclasses.dataclass(frozen=True)
class Spec:
    name: str
    architecture: str  # a class of transformers
    config: dict  # its config's arguments
    dtype: str = BF16  # of the file
    shard_bytes: int | None = None  # files no larger than that, with an index
    # What published checkpoints have in config.json and transformers 5 does not write: rope_theta and
    # rope_scaling beside each other, torch_dtype, keys that the class does not read.
    published_form: bool = False
    published_keys: dict = dataclasses.field(default_factory=dict)
    published_names: dict = dataclasses.field(default_factory=dict)  # transformers 5's: theirs
    published_rope_type_key: str = "rope_type"
    fp8: bool = False  # block-quantised matrices
    mxfp4: bool = False  # experts, but for those of not_quantised's layers
    not_quantised: tuple[str, ...] = ()  # modules_to_not_convert
    keep_float32: tuple[str, ...] = ()  # ends of names of tensors that stay float32 in the file
    # Published checkpoints have a layer for speculative decoding behind the last, which plain decoding leaves.
    prediction_layer: bool = False
    seed: int = 1

    @property
    def text_config(self):
        return self.config.get("text_config", self.config)


VOCABULARY = 96


def small(**more):
    return {"vocab_size": VOCABULARY, "hidden_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 256,
            "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "tie_word_embeddings": False, **more}


def rope(theta=10000.0, **more):
    return {"rope_type": "default", "rope_theta": theta, **more}


MLA = dict(hidden_size=48, num_attention_heads=3, num_key_value_heads=3, kv_lora_rank=24, qk_nope_head_dim=12,
           qk_rope_head_dim=8, v_head_dim=10, intermediate_size=56, moe_intermediate_size=16, num_hidden_layers=3)
GATED_DELTA = dict(moe_intermediate_size=8, shared_expert_intermediate_size=16, linear_num_key_heads=3,
                   linear_num_value_heads=6, linear_key_head_dim=8, linear_value_head_dim=10, linear_conv_kernel_dim=4)
YARN = dict(factor=4.0, original_max_position_embeddings=64)

SPECS = [
    # Three query heads a KV head, experts that neither two nor three servers divide.
    Spec("qwen3-moe", "Qwen3MoeForCausalLM", small(
        num_attention_heads=6, num_key_value_heads=2, head_dim=16, num_experts=10, num_experts_per_tok=3,
        moe_intermediate_size=12, norm_topk_prob=True, rope_parameters=rope(1e6))),
    # As many KV heads as query heads, five of them; routes that don't sum to 1.
    Spec("qwen3-moe-tied-sharded-fp16", "Qwen3MoeForCausalLM", small(
        num_attention_heads=5, num_key_value_heads=5, head_dim=8, num_experts=7, num_experts_per_tok=2,
        moe_intermediate_size=18, norm_topk_prob=False, tie_word_embeddings=True, rope_parameters=rope()),
        dtype=F16, shard_bytes=40_000, published_form=True, published_names={"num_local_experts": "num_experts"}),
    Spec("qwen3-moe-fp8", "Qwen3MoeForCausalLM", small(
        hidden_size=128, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=1, head_dim=64,
        num_experts=3, num_experts_per_tok=2, moe_intermediate_size=128, tie_word_embeddings=True,
        norm_topk_prob=True, rope_parameters=rope(1e6)),
        fp8=True, not_quantised=("lm_head", "model.layers.0.mlp.gate", "model.layers.0.self_attn.k_proj",
                                 "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm")),
    Spec("mixtral-fp32", "MixtralForCausalLM", small(
        hidden_size=40, num_attention_heads=4, num_key_value_heads=1, head_dim=12, num_local_experts=5, num_experts_per_tok=2,
        intermediate_size=16, sliding_window=None, rope_parameters=rope(1e6)), dtype=F32),
    Spec("minimax-m2", "MiniMaxM2ForCausalLM", small(
        num_attention_heads=6, num_key_value_heads=3, head_dim=16, num_local_experts=9, num_experts_per_tok=4,
        intermediate_size=10, rope_parameters=rope(5e6, partial_rotary_factor=0.5)),
        keep_float32=("e_score_correction_bias",)),
    Spec("minimax-m2-fp8", "MiniMaxM2ForCausalLM", small(
        hidden_size=128, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=1, head_dim=32,
        num_local_experts=3, num_experts_per_tok=2, intermediate_size=64,
        rope_parameters=rope(5e6, partial_rotary_factor=0.5)),
        fp8=True, not_quantised=("gate", "e_score_correction_bias", "lm_head"), published_form=True,
        published_keys={"rotary_dim": 16, "scoring_func": "sigmoid", "use_qk_norm": True, "use_mtp": True,
                        "num_mtp_modules": 3, "qk_norm_type": "per_layer", "use_routing_bias": True},
        keep_float32=("e_score_correction_bias",)),
    Spec("llama-llama3-rope", "LlamaForCausalLM", small(
        num_attention_heads=6, num_key_value_heads=2, intermediate_size=100, tie_word_embeddings=True,
        rope_parameters=rope(5e5, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=32)), published_form=True),
    Spec("llama-linear-rope-fp32", "LlamaForCausalLM", small(
        hidden_size=36,
        num_attention_heads=3, num_key_value_heads=1, head_dim=16, intermediate_size=90,
        rope_parameters=rope(rope_type="linear", factor=2.5)), dtype=F32, published_form=True,
        published_rope_type_key="type"),
    Spec("llama-yarn-rope-sharded", "LlamaForCausalLM", small(
        num_attention_heads=8, num_key_value_heads=4, head_dim=10, intermediate_size=40, num_hidden_layers=3,
        rope_parameters=rope(rope_type="yarn", beta_fast=16.0, beta_slow=2.0, **YARN)), shard_bytes=50_000),
    # Scaled only beyond the length it was trained on, which no request may reach.
    Spec("llama-dynamic-rope-fp16", "LlamaForCausalLM", small(
        num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
        rope_parameters=rope(rope_type="dynamic", factor=4.0)), dtype=F16),
    # Biases of q, k and v.
    Spec("qwen2", "Qwen2ForCausalLM", small(
        num_attention_heads=6, num_key_value_heads=2, intermediate_size=64, rope_parameters=rope(1e6)),
        published_form=True, published_keys={"use_sliding_window": False, "sliding_window": 128,
                                             "max_window_layers": 2}),
    Spec("qwen3-tied", "Qwen3ForCausalLM", small(
        num_attention_heads=5, num_key_value_heads=1, head_dim=16, intermediate_size=88, tie_word_embeddings=True,
        rope_parameters=rope(1e6)), published_form=True),
    Spec("qwen3-yarn-fp8", "Qwen3ForCausalLM", small(
        hidden_size=128, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        intermediate_size=256, rope_parameters=rope(1e6, rope_type="yarn", **YARN)),
        fp8=True, not_quantised=("lm_head",)),
    # Biases of all four projections.
    Spec("llama-biased", "LlamaForCausalLM", small(
        num_attention_heads=4, num_key_value_heads=4, intermediate_size=66, attention_bias=True,
        rope_parameters=rope())),
    # A dense layer before those with experts, of which one is shared and weighed by a gate.
    Spec("qwen2-moe", "Qwen2MoeForCausalLM", small(
        num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3, num_experts=7, num_experts_per_tok=3,
        intermediate_size=58, moe_intermediate_size=12, shared_expert_intermediate_size=28, mlp_only_layers=[0],
        norm_topk_prob=False, rope_parameters=rope(1e6)), published_form=True),
    Spec("deepseek-v2-lite", "DeepseekV2ForCausalLM", small(
        **MLA, q_lora_rank=None, n_routed_experts=7, n_shared_experts=2, num_experts_per_tok=3,
        first_k_dense_replace=1, topk_method="greedy", n_group=1, topk_group=1, routed_scaling_factor=1.0,
        norm_topk_prob=False,
        rope_parameters=rope(rope_type="yarn", beta_fast=32.0, beta_slow=1.0, mscale=0.707, mscale_all_dim=0.707,
                             **YARN)),
        published_form=True, published_rope_type_key="type",
        published_keys={"moe_layer_freq": 1, "scoring_func": "softmax", "seq_aux": True}),
    Spec("deepseek-v2-groups", "DeepseekV2ForCausalLM", small(
        **MLA, q_lora_rank=20, n_routed_experts=9, n_shared_experts=1, num_experts_per_tok=3,
        first_k_dense_replace=1, topk_method="group_limited_greedy", n_group=3, topk_group=2,
        routed_scaling_factor=4.0, norm_topk_prob=False, rope_parameters=rope())),
    Spec("deepseek-v3", "DeepseekV3ForCausalLM", small(
        **MLA, q_lora_rank=20, n_routed_experts=10, n_shared_experts=1, num_experts_per_tok=4,
        first_k_dense_replace=2, n_group=5, topk_group=2, routed_scaling_factor=2.5, norm_topk_prob=True,
        num_nextn_predict_layers=1,
        rope_parameters=rope(rope_type="yarn", beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
                             **YARN)),
        published_form=True, published_rope_type_key="type",
        published_keys={"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1, "ep_size": 1,
                        "aux_loss_alpha": 0.001, "seq_aux": True},
        prediction_layer=True, keep_float32=("e_score_correction_bias",)),
    # No matrix but the output projection has a multiple of 128 rows and columns: blocks at the edges are partial.
    Spec("deepseek-v3-fp8", "DeepseekV3ForCausalLM", small(
        hidden_size=138, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3, kv_lora_rank=32,
        q_lora_rank=None, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=48, intermediate_size=130,
        moe_intermediate_size=24, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2,
        first_k_dense_replace=1, n_group=1, topk_group=1, routed_scaling_factor=1.5, norm_topk_prob=True,
        num_nextn_predict_layers=0, rope_parameters=rope()),
        fp8=True, keep_float32=("e_score_correction_bias",)),
    Spec("qwen3.5-moe", "Qwen3_5MoeForCausalLM", small(
        num_attention_heads=6, num_key_value_heads=2, head_dim=16, num_hidden_layers=4, num_experts=7,
        num_experts_per_tok=3, layer_types=["linear_attention", "linear_attention", "full_attention",
                                            "linear_attention"],
        rope_parameters=rope(1e7, partial_rotary_factor=0.25), **GATED_DELTA),
        keep_float32=("linear_attn.A_log", "linear_attn.norm.weight")),
    # Published in FP8 the experts are one matrix each, and in bf16 stacked.
    Spec("qwen3.5-moe-fp8", "Qwen3_5MoeForCausalLM", small(
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_experts=5, num_experts_per_tok=2,
        hidden_size=80, layer_types=["linear_attention", "full_attention"],
        rope_parameters=rope(1e7, partial_rotary_factor=0.25), **GATED_DELTA),
        fp8=True, not_quantised=("lm_head", "mlp.gate", "shared_expert_gate", "in_proj_a", "in_proj_b"),
        keep_float32=("linear_attn.A_log",)),
    # Rows of the delta net's projections lie by key head; no list of layer types but an interval.
    Spec("qwen3-next", "Qwen3NextForCausalLM", small(
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_hidden_layers=4, intermediate_size=20,
        num_experts=6, num_experts_per_tok=2, mlp_only_layers=[1], norm_topk_prob=True,
        rope_parameters=rope(1e7, partial_rotary_factor=0.25), moe_intermediate_size=8,
        shared_expert_intermediate_size=12, linear_num_key_heads=2, linear_num_value_heads=6,
        linear_key_head_dim=6, linear_value_head_dim=8, linear_conv_kernel_dim=3), published_form=True,
        published_keys={"layer_types": None, "full_attention_interval": 4}, keep_float32=("linear_attn.A_log",)),
    # As it is published: the text model is a part of one that sees.
    Spec("qwen3.5-moe-published", "Qwen3_5MoeForConditionalGeneration", {
        "text_config": small(
            num_attention_heads=4, num_key_value_heads=1, head_dim=16, num_experts=6, num_experts_per_tok=2,
            layer_types=["linear_attention", "full_attention"],
            rope_parameters=rope(1e7, partial_rotary_factor=0.25, mrope_section=[1, 1, 0], mrope_interleaved=True),
            **GATED_DELTA),
        "vision_config": dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=1, in_channels=3, patch_size=2,
                              out_hidden_size=48, num_position_embeddings=4),
        "image_token_id": 1000, "video_token_id": 1001, "vision_start_token_id": 1002, "vision_end_token_id": 1003,
        "tie_word_embeddings": False}),
    Spec("gpt-oss", "GptOssForCausalLM", small(
        num_attention_heads=6, num_key_value_heads=2, head_dim=16, num_local_experts=5, num_experts_per_tok=2,
        intermediate_size=16, sliding_window=24, layer_types=["sliding_attention", "full_attention"],
        rope_parameters=rope(150000.0, rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0,
                             truncate=False, original_max_position_embeddings=64))),
    # As it is published; the experts of one layer stay as they are, transposed.
    Spec("gpt-oss-mxfp4", "GptOssForCausalLM", small(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=5, num_key_value_heads=1, head_dim=8,
        num_local_experts=3, num_experts_per_tok=2, intermediate_size=32, sliding_window=20,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=rope(150000.0, rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0,
                             truncate=False, original_max_position_embeddings=64)),
        mxfp4=True, not_quantised=("model.layers.*.self_attn", "model.layers.*.mlp.router", "model.layers.1.mlp.experts",
                                   "model.embed_tokens", "lm_head"),
        published_form=True, published_keys={"experts_per_token": 2, "initial_context_length": 64}),
    # Windows of all layers, and of the last alone.
    Spec("mixtral-window", "MixtralForCausalLM", small(
        hidden_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=12, num_local_experts=3,
        num_experts_per_tok=2, intermediate_size=16, sliding_window=19, rope_parameters=rope(1e6))),
    Spec("mistral", "MistralForCausalLM", small(
        hidden_size=40, num_attention_heads=6, num_key_value_heads=3, head_dim=8, intermediate_size=48,
        sliding_window=33, rope_parameters=rope()), published_form=True),
    Spec("qwen2-window", "Qwen2ForCausalLM", small(
        hidden_size=40, num_attention_heads=5, num_key_value_heads=1, intermediate_size=48, use_sliding_window=True,
        sliding_window=37, max_window_layers=1, rope_parameters=rope(1e6)), published_form=True,
        published_keys={"layer_types": None}),
]
