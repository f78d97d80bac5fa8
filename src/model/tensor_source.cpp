#include "model/tensor_source.h"

#include <cmath>
#include <vector>

#include "fastfd/core/check.h"
#include "model/fingerprint.h"

namespace fastfd::model {
namespace {

class CheckpointSource final : public TensorSource {
 public:
  explicit CheckpointSource(std::shared_ptr<const Checkpoint> checkpoint)
      : checkpoint_(std::move(checkpoint)) {}

  bool contains(const std::string& name) const override { return checkpoint_->contains(name); }
  std::uint64_t require(const TensorShape& tensor) const override {
    const TensorInfo& info = find(tensor);
    return info.num_bytes + (info.scales() != nullptr ? info.scales()->num_bytes : 0);
  }
  void read(const TensorShape& tensor, std::uint64_t first, std::uint64_t count,
            bf16* out) const override {
    checkpoint_->read(find(tensor), first, count, out);
  }
  void read(const TensorShape& tensor, std::uint64_t first, std::uint64_t count,
            float* out) const override {
    checkpoint_->read(find(tensor), first, count, out);
  }
  std::vector<std::string> stored_names(const TensorShape& tensor) const override {
    const TensorInfo& info = find(tensor);
    std::vector<std::string> names{info.stored_name.empty() ? info.name : info.stored_name};
    if (info.scales() != nullptr) {
      names.push_back(info.scales()->name);
    }
    return names;
  }
  bool is_fp8(const TensorShape& matrix) const override {
    return find(matrix).block_scales != nullptr;
  }
  void read_fp8(const TensorShape& matrix, std::uint8_t* e4m3, float* scales) const override {
    checkpoint_->read_fp8(find(matrix), e4m3, scales);
  }

 private:
  const TensorInfo& find(const TensorShape& tensor) const {
    return checkpoint_->require(tensor.name, tensor.dims);
  }

  std::shared_ptr<const Checkpoint> checkpoint_;
};

/// Weights that keep activations near 1 in every layer: matrices of standard deviation
/// 1 / sqrt(columns), norm weights near 1, what is added near 0. A tensor's values depend on seed
/// and name alone.
class DummySource final : public TensorSource {
 public:
  explicit DummySource(std::uint64_t seed) : seed_(seed) {}

  bool contains(const std::string& /*name*/) const override { return false; }
  std::uint64_t require(const TensorShape& /*tensor*/) const override { return 0; }

  void read(const TensorShape& tensor, std::uint64_t first, std::uint64_t count,
            bf16* out) const override {
    auto params = *recipe(tensor);
    params.first = first;
    params.count = count;
    params.out = out;
    kernels::random_fill(params);
    for (std::uint64_t i = 0; tensor.kind == TensorKind::kNorm && i < count; ++i) {
      out[i] = bf16::from_float(1.0F + out[i].to_float());
    }
  }
  void read(const TensorShape& tensor, std::uint64_t first, std::uint64_t count,
            float* out) const override {
    std::vector<bf16> values(count);
    read(tensor, first, count, values.data());
    for (std::uint64_t i = 0; i < count; ++i) {
      out[i] = values[i].to_float();
    }
  }

  std::optional<kernels::RandomFillParams> recipe(const TensorShape& tensor) const override {
    constexpr float kVectorStddev = 0.1F;
    Fingerprint key;
    key.add(seed_);
    key.add(tensor.name);
    kernels::RandomFillParams params;
    params.key = key.value();
    params.count = 1;
    for (const std::uint64_t dim : tensor.dims) {
      params.count *= dim;
    }
    params.stddev = is_vector(tensor) ? kVectorStddev
                                      : 1.0F / std::sqrt(static_cast<float>(tensor.dims.back()));
    return params;
  }

 private:
  static bool is_vector(const TensorShape& tensor) { return tensor.dims.size() == 1; }

  std::uint64_t seed_;
};

}  // namespace

void TensorSource::read_fp8(const TensorShape& /*matrix*/, std::uint8_t* /*e4m3*/,
                            float* /*scales*/) const {
  check(false, "a tensor that is not FP8");
}

Checkpoint open_checkpoint(const std::filesystem::path& model_dir, StoredQuantization stored) {
  Checkpoint checkpoint = Checkpoint::open(model_dir);
  switch (stored) {
    case StoredQuantization::kNone:
      break;
    case StoredQuantization::kFp8Blocks:
      checkpoint.use_block_scales();
      break;
    case StoredQuantization::kMxfp4:
      checkpoint.use_mxfp4();
      break;
  }
  return checkpoint;
}

std::unique_ptr<TensorSource> make_checkpoint_source(std::shared_ptr<const Checkpoint> checkpoint) {
  return std::make_unique<CheckpointSource>(std::move(checkpoint));
}

std::unique_ptr<TensorSource> open_tensor_source(const std::filesystem::path& model_dir,
                                                 const ModelSpec& spec) {
  if (spec.load.format == LoadFormat::kDummy) {
    return std::make_unique<DummySource>(spec.load.dummy_seed);
  }
  return make_checkpoint_source(
      std::make_shared<const Checkpoint>(open_checkpoint(model_dir, spec.stored)));
}

}  // namespace fastfd::model
