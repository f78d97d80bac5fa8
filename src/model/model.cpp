#include "fastfd/model/model.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "kernels/quantize/op.h"
#include "model/architecture.h"
#include "model/fingerprint.h"
#include "model/hf_config.h"
#include "model/quantization.h"
#include "model/safetensors_header.h"
#include "model/tensor_source.h"

namespace fastfd::model {
namespace {

void add_tensors(const Checkpoint& checkpoint, Fingerprint& digest) {
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    digest.add(name);
    digest.add(to_string(tensor.dtype));
    digest.add(std::uint64_t{tensor.shape.size()});
    for (const std::uint64_t dim : tensor.shape) {
      digest.add(dim);
    }
    digest.add(checkpoint.files()[tensor.file_index].filename().string());
    digest.add(tensor.file_offset);
    // Two fine-tunes of one model differ in nothing else.
    digest.add(checkpoint.sample(tensor));
  }
}

std::string read_architecture_name(const HfConfig& config) {
  const std::string key = "architectures";
  const nlohmann::json* list = config.find(key);
  if (list == nullptr || !list->is_array() || list->size() != 1 || !list->front().is_string()) {
    config.fail(key, "is not a list of one name",
                "use the config.json that belongs to the checkpoint");
  }
  return list->front().get<std::string>();
}

/// Every matrix of a routed expert is FP8 in the files.
bool experts_are_fp8(const Checkpoint& checkpoint) {
  bool has_fp8 = false;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (tensor.shape.size() != 2 || name.find(".experts.") == std::string::npos ||
        name.ends_with("_scale_inv")) {
      continue;
    }
    if (tensor.block_scales == nullptr) {
      return false;
    }
    has_fp8 = true;
  }
  return has_fp8;
}

DType choose_expert_dtype(const ModelSpec& spec, bool stored_as_fp8) {
  const auto is_whole_blocks = [](std::uint32_t dim) { return dim % kernels::kQuantizeBlock == 0; };
  const DType as_stored = stored_as_fp8 && is_whole_blocks(spec.hidden_dim) &&
                                  is_whole_blocks(spec.expert_intermediate_dim)
                              ? DType::kFloat8E4M3
                              : DType::kBFloat16;
  return spec.load.expert_dtype.value_or(as_stored);
}

/// After the checkpoint was checked, which still has them all.
void cut_layers(const HfConfig& config, std::uint32_t num_layers, ModelSpec& spec,
                Fingerprint& digest) {
  if (num_layers > spec.num_layers) {
    config.fail(
        "num_hidden_layers",
        fmt::format("is {}, but num_layers asks for the first {}", spec.num_layers, num_layers),
        fmt::format("use at most {}, or 0 for all", spec.num_layers));
  }
  if (num_layers != 0 && num_layers != spec.num_layers) {
    spec.num_layers = num_layers;
    digest.add(num_layers);
  }
}

std::size_t num_bytes_of(const std::vector<float>& values) { return values.size() * sizeof(float); }

}  // namespace

ModelSpec load_model_spec(const std::filesystem::path& model_dir, const LoadOptions& options) {
  const HfConfig config = HfConfig::read_file(model_dir / "config.json");
  const std::string name = read_architecture_name(config);
  const Architecture& architecture =
      ArchitectureRegistry::builtin().find(name, (model_dir / "config.json").string());
  ModelSpec spec;
  spec.has_fp8_blocks = read_has_fp8_blocks(config);
  spec.architecture = name;
  spec.load = options;
  architecture.read_config(config, spec);
  read_generation_config(model_dir, config, spec);
  Fingerprint digest;
  digest.add(config.text());
  if (options.format == LoadFormat::kDummy) {
    digest.add("dummy");
    digest.add(options.dummy_seed);
    spec.expert_dtype = choose_expert_dtype(spec, spec.has_fp8_blocks);
  } else {
    const Checkpoint checkpoint = open_checkpoint(model_dir, spec.has_fp8_blocks);
    architecture.check_tensors(checkpoint, spec);
    spec.expert_dtype = choose_expert_dtype(spec, experts_are_fp8(checkpoint));
    add_tensors(checkpoint, digest);
  }
  cut_layers(config, options.num_layers, spec, digest);
  spec.fingerprint = digest.value();
  return spec;
}

AttentionWeights load_attention_weights(const std::filesystem::path& model_dir,
                                        const ModelSpec& spec, LoadReport* report) {
  const Architecture& architecture =
      ArchitectureRegistry::builtin().find(spec.architecture, model_dir.string());
  return architecture.load_attention(*open_tensor_source(model_dir, spec), spec, report);
}

namespace {

void require_placement(const std::filesystem::path& model_dir, const ModelSpec& spec,
                       const ExpertPlacement& placement, ServerRank ffn_rank) {
  if (placement.num_experts() != spec.num_experts || ffn_rank >= placement.num_servers()) {
    throw ModelError(fmt::format(
        "{}: FFN server {} of {} with a placement of {} experts can't hold a model of {}; start "
        "every server with the same model and cluster file",
        model_dir.string(), ffn_rank, placement.num_servers(), placement.num_experts(),
        spec.num_experts));
  }
}

std::size_t num_bytes_of(const std::vector<device::DeviceBuffer>& memory) {
  std::size_t total = 0;
  for (const auto& block : memory) {
    total += block.num_bytes();
  }
  return total;
}

}  // namespace

FfnWeights load_ffn_weights(const std::filesystem::path& model_dir, const ModelSpec& spec,
                            const ExpertPlacement& placement, ServerRank ffn_rank,
                            LoadReport* report) {
  require_placement(model_dir, spec, placement, ffn_rank);
  if (spec.expert_dtype != DType::kBFloat16) {
    throw ModelError(
        fmt::format("{}: experts in {} need a GPU; use quantization auto or none, or FFN "
                    "servers with device cuda",
                    model_dir.string(), to_string(spec.expert_dtype)));
  }
  const Architecture& architecture =
      ArchitectureRegistry::builtin().find(spec.architecture, model_dir.string());
  return architecture.load_ffn(*open_tensor_source(model_dir, spec), spec,
                               placement.experts_of(ffn_rank), report);
}

DeviceAttentionWeights upload_attention_weights(const std::filesystem::path& model_dir,
                                                const ModelSpec& spec,
                                                const device::CudaDevice& device,
                                                LoadReport* report) {
  const Architecture& architecture =
      ArchitectureRegistry::builtin().find(spec.architecture, model_dir.string());
  return architecture.upload_attention(*open_tensor_source(model_dir, spec), spec, device, report);
}

DeviceFfnWeights upload_ffn_weights(const std::filesystem::path& model_dir, const ModelSpec& spec,
                                    const ExpertPlacement& placement, ServerRank ffn_rank,
                                    const device::CudaDevice& device, LoadReport* report) {
  require_placement(model_dir, spec, placement, ffn_rank);
  const Architecture& architecture =
      ArchitectureRegistry::builtin().find(spec.architecture, model_dir.string());
  return architecture.upload_ffn(*open_tensor_source(model_dir, spec), spec,
                                 placement.experts_of(ffn_rank), device, report);
}

std::size_t DeviceAttentionWeights::num_bytes() const { return num_bytes_of(memory); }
std::size_t DeviceFfnWeights::num_bytes() const { return num_bytes_of(memory); }

std::size_t AttentionWeights::num_bytes() const {
  std::size_t total =
      embedding.size() * sizeof(bf16) + lm_head.num_bytes() + num_bytes_of(final_norm);
  for (const auto& layer : layers) {
    total += num_bytes_of(layer.input_norm) + layer.qkv.num_bytes() + num_bytes_of(layer.q_norm) +
             num_bytes_of(layer.k_norm) + layer.out.num_bytes() + num_bytes_of(layer.post_norm) +
             layer.router.num_bytes();
  }
  return total;
}

std::size_t FfnWeights::num_bytes() const {
  std::size_t total = 0;
  for (const auto& experts : layers) {
    for (const auto& expert : experts) {
      total += expert.gate_up.num_bytes() + expert.down.num_bytes();
    }
  }
  return total;
}

}  // namespace fastfd::model
