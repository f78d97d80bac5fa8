#pragma once

/// Model architectures by the name that config.json gives them.

#include <string>
#include <vector>

#include "fastfd/model/model.h"
#include "model/hf_config.h"
#include "model/tensor_names.h"

namespace fastfd::model {

/// How one family of models names its settings and tensors: all that FastFD knows of it. See
/// docs/adding-a-model.md.
struct Architecture {
  std::string name;  ///< as in config.json's `architectures`
  TensorNames tensors;
  /// Fills all of the spec that does not come from generation_config.json; throws ModelError for
  /// what can't be computed faithfully.
  void (*read_config)(const HfConfig& config, ModelSpec& spec) = nullptr;
};

class ArchitectureRegistry {
 public:
  /// Throws InternalError for a name that is taken.
  void add(Architecture architecture);

  /// Throws ModelError that lists the names there are; `where` names the file that asked.
  const Architecture& find(const std::string& name, const std::string& where) const;

  /// Ascending.
  std::vector<std::string> names() const;

  /// All that FastFD serves. Made on first use; safe to call from any thread.
  static const ArchitectureRegistry& builtin();

 private:
  std::vector<Architecture> architectures_;
};

/// The entries of builtin(), see architectures.cpp.
std::vector<Architecture> all_architectures();

}  // namespace fastfd::model
