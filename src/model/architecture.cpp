#include "model/architecture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "fastfd/core/check.h"
#include "model/safetensors_header.h"

namespace fastfd::model {

void ArchitectureRegistry::add(Architecture architecture) {
  for (const auto& other : architectures_) {
    check(other.name != architecture.name,
          "architecture " + architecture.name + " is registered twice");
  }
  architectures_.push_back(std::move(architecture));
}

const Architecture& ArchitectureRegistry::find(const std::string& name,
                                               const std::string& where) const {
  for (const auto& architecture : architectures_) {
    if (architecture.name == name) {
      return architecture;
    }
  }
  throw ModelError(fmt::format("{}: architectures: {} can't be served; use a model of {}", where,
                               quote_name(name), fmt::join(names(), ", ")));
}

std::vector<std::string> ArchitectureRegistry::names() const {
  std::vector<std::string> names;
  for (const auto& architecture : architectures_) {
    names.push_back(architecture.name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

const ArchitectureRegistry& ArchitectureRegistry::builtin() {
  static const ArchitectureRegistry registry = [] {
    ArchitectureRegistry all;
    for (Architecture& architecture : all_architectures()) {
      all.add(std::move(architecture));
    }
    return all;
  }();
  return registry;
}

}  // namespace fastfd::model
