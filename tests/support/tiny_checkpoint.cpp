#include "support/tiny_checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <system_error>

#include "kernels/quantize/op.h"

namespace fastfd::test {
namespace {

/// Normally distributed by the sum of twelve uniforms: the same on every standard library.
class ValueSource {
 public:
  explicit ValueSource(std::uint64_t seed) : generator_(seed) {}
  float next(float mean, float deviation) {
    double sum = -6.0;
    for (int i = 0; i < 12; ++i) {
      sum += static_cast<double>(generator_() >> 11) * 0x1p-53;
    }
    return bf16::from_float(mean + deviation * static_cast<float>(sum)).to_float();
  }

 private:
  std::mt19937_64 generator_;
};

class TensorMaker {
 public:
  explicit TensorMaker(std::uint64_t seed) : source_(seed) {}

  void add(const std::string& name, std::vector<std::uint64_t> shape) {
    TinyTensor tensor;
    tensor.shape = std::move(shape);
    std::uint64_t count = 1;
    for (const std::uint64_t dim : tensor.shape) {
      count *= dim;
    }
    const bool is_norm = tensor.shape.size() == 1;
    for (std::uint64_t i = 0; i < count; ++i) {
      tensor.values.push_back(is_norm ? source_.next(1.0F, 0.1F) : source_.next(0.0F, 0.2F));
    }
    tensors_.emplace(name, std::move(tensor));
  }

  /// A matrix that block FP8 quantises.
  void add_projection(const std::string& name, std::vector<std::uint64_t> shape) {
    add(name, std::move(shape));
    projections_.push_back(name);
  }

  TinyTensors take(const TinyCheckpointOptions& options) {
    for (const auto& name : projections_) {
      if (options.fp8) {
        quantize_tensor(tensors_, name, options.scale_dtype);
      }
    }
    return std::move(tensors_);
  }

 private:
  ValueSource source_;
  TinyTensors tensors_;
  std::vector<std::string> projections_;
};

/// Exact for the bf16 values that are normal numbers of half precision; others lose bits.
std::uint16_t to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const int exponent = static_cast<int>((bits >> 23) & 0xffU) - 112;
  if (exponent <= 0) {
    return sign;
  }
  return static_cast<std::uint16_t>(sign | (static_cast<unsigned>(exponent) << 10) |
                                    ((bits >> 13) & 0x3ffU));
}

template <typename T>
void append(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

std::string encode(const TinyTensor& tensor, const std::string& dtype) {
  std::string bytes(tensor.bits.begin(), tensor.bits.end());
  if (!bytes.empty()) {
    return bytes;
  }
  for (const float value : tensor.values) {
    if (dtype == "F32") {
      append(bytes, value);
    } else if (dtype == "F16") {
      append(bytes, to_half(value));
    } else if (dtype == "BF16") {
      append(bytes, bf16::from_float(value).bits);
    } else {
      throw std::invalid_argument("tiny checkpoints are BF16, F16 or F32, not " + dtype);
    }
  }
  return bytes;
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "fastfd-test-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw std::runtime_error("can't make a temporary folder like " + pattern);
  }
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

TinyTensors make_tiny_tensors(const TinyCheckpointOptions& options) {
  TensorMaker maker(options.seed);
  const std::uint64_t hidden = options.hidden_dim;
  const std::uint64_t q = std::uint64_t{options.num_q_heads} * options.head_dim;
  const std::uint64_t kv = std::uint64_t{options.num_kv_heads} * options.head_dim;
  maker.add("model.embed_tokens.weight", {options.vocab_size, hidden});
  maker.add("model.norm.weight", {hidden});
  if (!options.tied_embeddings) {
    maker.add("lm_head.weight", {options.vocab_size, hidden});
  }
  for (std::uint32_t layer = 0; layer < options.num_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    maker.add(prefix + "input_layernorm.weight", {hidden});
    maker.add(prefix + "post_attention_layernorm.weight", {hidden});
    maker.add(prefix + "self_attn.q_norm.weight", {options.head_dim});
    maker.add(prefix + "self_attn.k_norm.weight", {options.head_dim});
    maker.add_projection(prefix + "self_attn.q_proj.weight", {q, hidden});
    maker.add_projection(prefix + "self_attn.k_proj.weight", {kv, hidden});
    maker.add_projection(prefix + "self_attn.v_proj.weight", {kv, hidden});
    maker.add_projection(prefix + "self_attn.o_proj.weight", {hidden, q});
    maker.add(prefix + "mlp.gate.weight", {options.num_experts, hidden});
    for (std::uint32_t expert = 0; expert < options.num_experts; ++expert) {
      const std::string expert_prefix = prefix + "mlp.experts." + std::to_string(expert) + ".";
      maker.add_projection(expert_prefix + "gate_proj.weight",
                           {options.expert_intermediate_dim, hidden});
      maker.add_projection(expert_prefix + "up_proj.weight",
                           {options.expert_intermediate_dim, hidden});
      maker.add_projection(expert_prefix + "down_proj.weight",
                           {hidden, options.expert_intermediate_dim});
    }
  }
  return maker.take(options);
}

void quantize_tensor(TinyTensors& tensors, const std::string& name,
                     const std::string& scale_dtype) {
  constexpr std::uint64_t kBlock = 128;
  constexpr float kLargest = 448.0F;
  TinyTensor& matrix = tensors.at(name);
  const std::uint64_t rows = matrix.shape.at(0);
  const std::uint64_t cols = matrix.shape.at(1);
  TinyTensor scales;
  scales.dtype = scale_dtype;
  scales.shape = {(rows + kBlock - 1) / kBlock, (cols + kBlock - 1) / kBlock};
  scales.values.assign(scales.shape[0] * scales.shape[1], 0.0F);
  const auto scale_of = [&](std::uint64_t i) -> float& {
    return scales.values[i / cols / kBlock * scales.shape[1] + i % cols / kBlock];
  };
  for (std::uint64_t i = 0; i < matrix.values.size(); ++i) {
    scale_of(i) = std::max(scale_of(i), std::abs(matrix.values[i]) / kLargest);
  }
  for (float& scale : scales.values) {
    scale = scale_dtype == "F32" ? scale : bf16::from_float(scale).to_float();
  }
  matrix.dtype = "F8_E4M3";
  matrix.bits.clear();
  for (std::uint64_t i = 0; i < matrix.values.size(); ++i) {
    matrix.bits.push_back(kernels::to_e4m3(matrix.values[i] / scale_of(i)));
    const float product = kernels::from_e4m3(matrix.bits.back()) * scale_of(i);
    matrix.values[i] = bf16::from_float(product).to_float();
  }
  tensors[name + "_scale_inv"] = std::move(scales);
}

std::string make_tiny_config(const TinyCheckpointOptions& options) {
  nlohmann::ordered_json config = {
      {"architectures", {"Qwen3MoeForCausalLM"}},
      {"model_type", "qwen3_moe"},
      {"vocab_size", options.vocab_size},
      {"hidden_size", options.hidden_dim},
      {"num_hidden_layers", options.num_layers},
      {"num_attention_heads", options.num_q_heads},
      {"num_key_value_heads", options.num_kv_heads},
      {"head_dim", options.head_dim},
      {"hidden_act", "silu"},
      {"max_position_embeddings", options.max_positions},
      {"rms_norm_eps", 1e-6},
      {"tie_word_embeddings", options.tied_embeddings},
      {"rope_theta", 10000.0},
      {"rope_scaling", nullptr},
      {"attention_bias", false},
      {"use_sliding_window", false},
      {"decoder_sparse_step", 1},
      {"moe_intermediate_size", options.expert_intermediate_dim},
      {"num_experts_per_tok", options.experts_per_token},
      {"num_experts", options.num_experts},
      {"norm_topk_prob", true},
      {"mlp_only_layers", nlohmann::ordered_json::array()},
      {"eos_token_id", options.vocab_size - 1},
  };
  if (options.fp8) {
    config["quantization_config"] = {{"quant_method", "fp8"},
                                     {"activation_scheme", "dynamic"},
                                     {"fmt", "e4m3"},
                                     {"modules_to_not_convert", {"lm_head"}},
                                     {"weight_block_size", {128, 128}}};
  }
  return config.dump(2) + "\n";
}

void write_safetensors(const std::filesystem::path& file, const TinyTensors& tensors,
                       const std::string& file_dtype, std::uint32_t misalignment) {
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t begin = data.size();
    const std::string& dtype = tensor.dtype.empty() ? file_dtype : tensor.dtype;
    data += encode(tensor, dtype);
    header[name] = {
        {"dtype", dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  while (text.size() % 8 != misalignment % 8) {
    text += ' ';
  }
  std::string bytes = raw_safetensors(text, 0);
  write_file(file, bytes + data);
}

std::string raw_safetensors(const std::string& header, std::uint64_t num_data_bytes) {
  std::string bytes;
  append(bytes, std::uint64_t{header.size()});
  return bytes + header + std::string(num_data_bytes, '\0');
}

void write_tiny_checkpoint(const std::filesystem::path& dir, const TinyCheckpointOptions& options) {
  write_file(dir / "config.json", make_tiny_config(options));
  const nlohmann::ordered_json generation = {{"do_sample", false},
                                             {"eos_token_id", {options.vocab_size - 1}}};
  write_file(dir / "generation_config.json", generation.dump());
  const TinyTensors tensors = make_tiny_tensors(options);
  if (options.num_shards <= 1) {
    write_safetensors(dir / "model.safetensors", tensors, options.dtype, options.misalignment);
    return;
  }
  std::vector<TinyTensors> shards(options.num_shards);
  nlohmann::ordered_json weight_map;
  std::uint32_t next = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::string file = "model-" + std::to_string(next) + ".safetensors";
    weight_map[name] = file;
    shards[next].emplace(name, tensor);
    next = (next + 1) % options.num_shards;
  }
  for (std::uint32_t i = 0; i < options.num_shards; ++i) {
    write_safetensors(dir / ("model-" + std::to_string(i) + ".safetensors"), shards[i],
                      options.dtype, options.misalignment);
  }
  const nlohmann::ordered_json index = {{"metadata", nlohmann::ordered_json::object()},
                                        {"weight_map", weight_map}};
  write_file(dir / "model.safetensors.index.json", index.dump());
}

void write_file(const std::filesystem::path& file, const std::string& bytes) {
  // Some file systems wait for the disk when a file is truncated and written again.
  std::filesystem::remove(file);
  std::ofstream stream(file, std::ios::binary | std::ios::trunc);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!stream.flush()) {
    throw std::runtime_error("can't write " + file.string());
  }
}

std::string read_file(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    throw std::runtime_error("can't read " + file.string());
  }
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

}  // namespace fastfd::test
