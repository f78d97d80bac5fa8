#include "fastfd/model/model.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "model/architecture.h"
#include "model/fingerprint.h"
#include "model/hf_config.h"
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

void refuse_quantization(const HfConfig& config) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    const nlohmann::json* quantization = config.find(key);
    if (quantization == nullptr) {
      continue;
    }
    std::string method = "of an unnamed method";
    if (quantization->is_object()) {
      const auto at = quantization->find("quant_method");
      if (at != quantization->end() && at->is_string()) {
        method = quote_name(at->get<std::string>());
      }
    }
    config.fail(key, "quantization " + method + " is not supported",
                "use the model's BF16, F16 or F32 checkpoint");
  }
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
  refuse_quantization(config);
  ModelSpec spec;
  spec.architecture = name;
  spec.load = options;
  architecture.read_config(config, spec);
  read_generation_config(model_dir, config, spec);
  Fingerprint digest;
  digest.add(config.text());
  if (options.format == LoadFormat::kDummy) {
    digest.add("dummy");
    digest.add(options.dummy_seed);
  } else {
    const Checkpoint checkpoint = Checkpoint::open(model_dir);
    architecture.check_tensors(checkpoint, spec);
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
  if (spec.load.expert_dtype != DType::kBFloat16) {
    throw ModelError(
        fmt::format("{}: experts in {} need a GPU; use quantization none, or FFN "
                    "servers with device cuda",
                    model_dir.string(), to_string(spec.load.expert_dtype)));
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
