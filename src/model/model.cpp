#include "fastfd/model/model.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "kernels/quantize/op.h"
#include "model/architecture.h"
#include "model/fingerprint.h"
#include "model/hf_config.h"
#include "model/loader.h"
#include "model/quantization.h"
#include "model/safetensors_header.h"
#include "model/tensor_map.h"
#include "model/tensor_source.h"

namespace fastfd::model {
namespace {

constexpr std::string_view kScalesSuffix = "_scale_inv";

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
        name.ends_with(kScalesSuffix)) {
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

/// Every tensor that any server will need is there, and no other in the model's layers, which would
/// be part of a computation that config.json does not speak of.
void check_tensors(const std::shared_ptr<const Checkpoint>& checkpoint,
                   const Architecture& architecture, const ModelSpec& spec) {
  const auto source = make_checkpoint_source(checkpoint);
  const TensorMap tensors(spec, architecture.tensors, *source);
  std::set<std::string> known;
  tensors.for_each([&](const TensorShape& tensor) {
    source->require(tensor);
    known.insert(tensor.name);
  });
  const std::string& prefix = tensors.layers();
  for (auto at = checkpoint->tensors().lower_bound(prefix);
       at != checkpoint->tensors().end() && at->first.starts_with(prefix); ++at) {
    const std::string& name = at->first;
    const auto is_part_of_known = [&](std::string_view suffix) {
      return name.ends_with(suffix) && known.contains(name.substr(0, name.size() - suffix.size()));
    };
    const bool is_known = known.contains(name) || is_part_of_known(kScalesSuffix) ||
                          is_part_of_known(kMxfp4Blocks) || is_part_of_known(kMxfp4Scales);
    // A table that follows from config.json; some old checkpoints hold it.
    if (is_known || name.ends_with(".rotary_emb.inv_freq")) {
      continue;
    }
    const std::string file = checkpoint->files()[at->second.file_index].string();
    std::uint64_t layer = 0;
    const auto parsed =
        std::from_chars(name.data() + prefix.size(), name.data() + name.size(), layer);
    if (parsed.ec == std::errc{} && layer >= spec.num_layers &&
        layer < spec.num_layers + spec.num_prediction_layers) {
      continue;
    }
    if (parsed.ec == std::errc{} && layer >= spec.num_layers) {
      throw ModelError(fmt::format(
          "{}: tensor {} belongs to no layer: config.json's num_hidden_layers is {}; use the "
          "config.json that belongs to the checkpoint",
          file, name, spec.num_layers));
    }
    throw ModelError(
        fmt::format("{}: tensor {} is none that {} with this config.json computes with; use the "
                    "config.json that belongs to the checkpoint",
                    file, quote_name(name), architecture.name));
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
    spec.layers.resize(num_layers);
    digest.add(num_layers);
  }
}

std::size_t num_bytes_of(const std::vector<float>& values) { return values.size() * sizeof(float); }
std::size_t num_bytes_of(const kernels::ExpertWeights& expert) {
  return expert.gate_up.num_bytes() + expert.down.num_bytes() + num_bytes_of(expert.gate_up_bias) +
         num_bytes_of(expert.down_bias);
}

}  // namespace

ModelSpec load_model_spec(const std::filesystem::path& model_dir, const LoadOptions& options) {
  const HfConfig config = HfConfig::read_file(model_dir / "config.json");
  const std::string name = read_architecture_name(config);
  const Architecture& architecture =
      ArchitectureRegistry::builtin().find(name, (model_dir / "config.json").string());
  ModelSpec spec;
  spec.stored = read_quantization(config, architecture.tensors.interleaved_experts);
  spec.architecture = name;
  spec.load = options;
  architecture.read_config(config, spec);
  read_generation_config(model_dir, config, spec);
  Fingerprint digest;
  digest.add(config.text());
  if (options.format == LoadFormat::kDummy) {
    digest.add("dummy");
    digest.add(options.dummy_seed);
    spec.expert_dtype = choose_expert_dtype(spec, spec.stored == StoredQuantization::kFp8Blocks);
  } else {
    const auto checkpoint =
        std::make_shared<const Checkpoint>(open_checkpoint(model_dir, spec.stored));
    check_tensors(checkpoint, architecture, spec);
    spec.expert_dtype = choose_expert_dtype(spec, experts_are_fp8(*checkpoint));
    add_tensors(*checkpoint, digest);
  }
  cut_layers(config, options.num_layers, spec, digest);
  spec.fingerprint = digest.value();
  return spec;
}

namespace {

void require_placement(const std::filesystem::path& model_dir, const ModelSpec& spec,
                       const ExpertPlacement& placement, ServerRank ffn_rank) {
  const std::uint32_t num_experts = spec.num_placed_experts(placement.num_servers());
  if (placement.num_experts() != num_experts || ffn_rank >= placement.num_servers()) {
    throw ModelError(fmt::format(
        "{}: FFN server {} of {} with a placement of {} experts can't hold a model of {}; start "
        "every server with the same model and cluster file",
        model_dir.string(), ffn_rank, placement.num_servers(), placement.num_experts(),
        num_experts));
  }
}

/// A model's folder, opened to load tensors from.
class OpenModel {
 public:
  OpenModel(const std::filesystem::path& model_dir, const ModelSpec& spec)
      : source_(open_tensor_source(model_dir, spec)),
        tensors_(
            spec,
            ArchitectureRegistry::builtin().find(spec.architecture, model_dir.string()).tensors,
            *source_) {}
  const TensorSource& source() const { return *source_; }
  const TensorMap& tensors() const { return tensors_; }

 private:
  std::unique_ptr<TensorSource> source_;
  TensorMap tensors_;
};

std::size_t num_bytes_of(const std::vector<device::DeviceBuffer>& memory) {
  std::size_t total = 0;
  for (const auto& block : memory) {
    total += block.num_bytes();
  }
  return total;
}

}  // namespace

AttentionWeights load_attention_weights(const std::filesystem::path& model_dir,
                                        const ModelSpec& spec, LoadReport* report) {
  const OpenModel model(model_dir, spec);
  return load_attention(model.source(), spec, model.tensors(), report);
}

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
  const OpenModel model(model_dir, spec);
  return load_ffn(model.source(), spec, model.tensors(), FfnShare::of(placement, ffn_rank), report);
}

DeviceAttentionWeights upload_attention_weights(const std::filesystem::path& model_dir,
                                                const ModelSpec& spec,
                                                const device::CudaDevice& device,
                                                LoadReport* report) {
  const OpenModel model(model_dir, spec);
  return upload_attention(model.source(), spec, model.tensors(), device, report);
}

DeviceFfnWeights upload_ffn_weights(const std::filesystem::path& model_dir, const ModelSpec& spec,
                                    const ExpertPlacement& placement, ServerRank ffn_rank,
                                    const device::CudaDevice& device, LoadReport* report) {
  require_placement(model_dir, spec, placement, ffn_rank);
  const OpenModel model(model_dir, spec);
  return upload_ffn(model.source(), spec, model.tensors(), placement, ffn_rank, device, report);
}

DeviceFfnDims DeviceFfnDims::of(const ModelSpec& spec, FfnKind kind,
                                const ExpertPlacement& placement, ServerRank ffn_rank) {
  constexpr std::uint32_t kTile = 128;  // of the kernels
  const FfnShare share = FfnShare::of(placement, ffn_rank);
  const bool is_dense = kind == FfnKind::kDense;
  const std::size_t num_experts = is_dense ? share.slices.size() : share.experts.size();
  const std::uint32_t width =
      is_dense ? share.slice_width(spec.dense_intermediate_dim) : spec.expert_intermediate_dim;
  DeviceFfnDims dims;
  dims.num_experts = static_cast<std::uint32_t>(num_experts);
  dims.intermediate_dim = (width + kTile - 1) / kTile * kTile;
  // Every attention server finds one slice here, whatever replicas there are.
  dims.routes_per_token = is_dense ? 1 : std::min(spec.experts_per_token, dims.num_experts);
  return dims;
}

std::size_t DeviceAttentionWeights::num_bytes() const { return num_bytes_of(memory); }
std::size_t DeviceFfnWeights::num_bytes() const { return num_bytes_of(memory); }

std::size_t LatentAttentionWeights::num_bytes() const {
  std::size_t total = q_down.num_bytes() + num_bytes_of(q_norm) + q.num_bytes() + kv.num_bytes() +
                      num_bytes_of(kv_norm) + out.num_bytes();
  for (const auto* heads : {&keys, &values}) {
    for (const auto& head : *heads) {
      total += head.num_bytes();
    }
  }
  return total;
}

std::size_t AttentionWeights::num_bytes() const {
  std::size_t total =
      embedding.size() * sizeof(bf16) + lm_head.num_bytes() + num_bytes_of(final_norm);
  for (const auto& layer : layers) {
    const auto& full = layer.full;
    total += num_bytes_of(layer.input_norm) + num_bytes_of(layer.post_norm) +
             layer.latent.num_bytes() + full.qkv.num_bytes() + num_bytes_of(full.qkv_bias) +
             num_bytes_of(full.q_norm) + num_bytes_of(full.k_norm) + full.out.num_bytes() +
             num_bytes_of(full.out_bias) + num_bytes_of(full.sinks) +
             layer.router.weights.num_bytes() + num_bytes_of(layer.router.correction_bias) +
             num_bytes_of(layer.router.bias) + num_bytes_of(layer.shared.expert) +
             layer.shared.gate.num_bytes() + full.gate.num_bytes();
    const auto& delta = layer.gated_delta_net;
    total += delta.in.num_bytes() + num_bytes_of(delta.conv) + num_bytes_of(delta.a_log) +
             num_bytes_of(delta.dt_bias) + num_bytes_of(delta.norm) + delta.out.num_bytes();
  }
  return total;
}

std::size_t FfnWeights::num_bytes() const {
  std::size_t total = 0;
  for (const auto& layer : layers) {
    for (const auto& expert : layer.experts) {
      total += num_bytes_of(expert);
    }
  }
  return total;
}

}  // namespace fastfd::model
