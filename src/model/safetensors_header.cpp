#include "model/safetensors_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "fastfd/model/model.h"

namespace fastfd::model {
namespace {

using Json = nlohmann::json;

struct DTypeRow {
  const char* name;
  std::size_t num_bytes;
};

/// By StoredDType.
constexpr std::array<DTypeRow, 16> kDTypes = {{{"BOOL", 1},
                                               {"U8", 1},
                                               {"I8", 1},
                                               {"F8_E4M3", 1},
                                               {"F8_E5M2", 1},
                                               {"F8_E8M0", 1},
                                               {"I16", 2},
                                               {"U16", 2},
                                               {"F16", 2},
                                               {"BF16", 2},
                                               {"I32", 4},
                                               {"U32", 4},
                                               {"F32", 4},
                                               {"I64", 8},
                                               {"U64", 8},
                                               {"F64", 8}}};
static_assert(kDTypes.size() == static_cast<std::size_t>(StoredDType::kF64) + 1);

constexpr std::size_t kMostDimensions = 16;
constexpr int kDeepestHeader = 4;  // {"name": {"shape": [...]}} is 3 deep

std::optional<StoredDType> find_dtype(const std::string& name) {
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (name == kDTypes[i].name) {
      return static_cast<StoredDType>(i);
    }
  }
  return std::nullopt;
}

/// Parses text to JSON, refusing what a JSON library lets pass: a name given twice.
Json parse_header_json(const std::string& header, const std::filesystem::path& file) {
  std::array<std::set<std::string>, kDeepestHeader + 1> keys;  // by depth
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kDeepestHeader) {
      throw ModelError(
          fmt::format("{}: the header is nested too deeply; fetch the file again", file.string()));
    }
    if (event == Json::parse_event_t::object_start && depth < kDeepestHeader) {
      keys[static_cast<std::size_t>(depth) + 1].clear();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys[static_cast<std::size_t>(depth)].insert(key).second) {
        throw ModelError(
            fmt::format("{}: {} {} is a duplicate: the header names it twice; export the "
                        "checkpoint again",
                        file.string(), depth == 1 ? "tensor" : "key", quote_name(key)));
      }
    }
    return true;
  };
  Json parsed;
  try {
    parsed = Json::parse(header, check);
  } catch (const Json::exception& error) {
    throw ModelError(
        fmt::format("{}: the header is not JSON ({}); the file is damaged or no safetensors file, "
                    "fetch it again",
                    file.string(), error.what()));
  }
  if (!parsed.is_object()) {
    throw ModelError(
        fmt::format("{}: the header is not a JSON object; fetch the file again", file.string()));
  }
  return parsed;
}

/// Reads one entry of the header.
class EntryReader {
 public:
  EntryReader(const std::string& name, const Json& entry, const std::filesystem::path& file)
      : name_(name), entry_(entry), file_(file) {}

  TensorInfo read(std::uint64_t header_end, std::uint64_t file_bytes) const {
    TensorInfo tensor;
    tensor.name = name_;
    if (!entry_.is_object()) {
      fail("its entry in the header is not an object");
    }
    tensor.dtype = read_dtype();
    tensor.shape = read_shape();
    const auto [begin, end] = read_offsets();
    if (begin > end || end > file_bytes - header_end) {
      fail(
          fmt::format("bytes {}..{} lie outside the file's {} bytes of data: truncated file or "
                      "damaged header",
                      begin, end, file_bytes - header_end));
    }
    tensor.num_elements = count_elements(tensor.shape);
    std::uint64_t expected = 0;
    if (__builtin_mul_overflow(tensor.num_elements, dtype_bytes(tensor.dtype), &expected)) {
      fail(fmt::format("shape {} is too large", shape_to_string(tensor.shape)));
    }
    tensor.num_bytes = end - begin;
    if (tensor.num_bytes != expected) {
      fail(fmt::format("{} {} needs {} bytes, its range {}..{} has {}", to_string(tensor.dtype),
                       shape_to_string(tensor.shape), expected, begin, end, tensor.num_bytes));
    }
    tensor.file_offset = header_end + begin;
    return tensor;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw ModelError(fmt::format("{}: tensor {}: {}; fetch or export the file again",
                                 file_.string(), quote_name(name_), what));
  }

  const Json& member(const char* key, bool is_type_ok(const Json&), const char* type) const {
    const auto at = entry_.find(key);
    if (at == entry_.end() || !is_type_ok(*at)) {
      fail(fmt::format("its `{}` is not {}", key, type));
    }
    return *at;
  }

  StoredDType read_dtype() const {
    const Json& dtype = member(
        "dtype", [](const Json& json) { return json.is_string(); }, "a string");
    const auto found = find_dtype(dtype.get_ref<const std::string&>());
    if (!found) {
      std::vector<std::string> names;
      names.reserve(kDTypes.size());
      for (const auto& row : kDTypes) {
        names.emplace_back(row.name);
      }
      fail(fmt::format("unknown dtype {}, the known ones are {}",
                       quote_name(dtype.get_ref<const std::string&>()), fmt::join(names, ", ")));
    }
    return *found;
  }

  std::vector<std::uint64_t> read_shape() const {
    const Json& shape = member("shape", is_list_of_counts, "a list of non-negative integers");
    if (shape.size() > kMostDimensions) {
      fail(fmt::format("{} dimensions are too many", shape.size()));
    }
    return shape.get<std::vector<std::uint64_t>>();
  }

  std::pair<std::uint64_t, std::uint64_t> read_offsets() const {
    const Json& offsets =
        member("data_offsets", is_list_of_counts, "a list of two non-negative integers");
    if (offsets.size() != 2) {
      fail("its `data_offsets` is not a list of two non-negative integers");
    }
    return {offsets[0].get<std::uint64_t>(), offsets[1].get<std::uint64_t>()};
  }

  std::uint64_t count_elements(const std::vector<std::uint64_t>& shape) const {
    std::uint64_t count = 1;
    for (const std::uint64_t dim : shape) {
      if (__builtin_mul_overflow(count, dim, &count)) {
        fail(fmt::format("shape {} is too large", shape_to_string(shape)));
      }
    }
    return count;
  }

  static bool is_list_of_counts(const Json& json) {
    return json.is_array() && std::all_of(json.begin(), json.end(), [](const Json& item) {
             return item.is_number_unsigned();
           });
  }

  const std::string& name_;
  const Json& entry_;
  const std::filesystem::path& file_;
};

/// The format allows neither overlaps nor holes: every byte of data belongs to one tensor.
void check_coverage(const std::vector<TensorInfo>& tensors, std::uint64_t header_end,
                    std::uint64_t file_bytes, const std::filesystem::path& file) {
  std::uint64_t covered = header_end;
  const TensorInfo* previous = nullptr;
  for (const auto& tensor : tensors) {
    if (tensor.file_offset < covered) {
      throw ModelError(fmt::format("{}: tensor {} overlaps tensor {}; export the file again",
                                   file.string(), quote_name(tensor.name),
                                   quote_name(previous->name)));
    }
    if (tensor.file_offset > covered) {
      throw ModelError(
          fmt::format("{}: {} bytes before tensor {} belong to no tensor; export the file again",
                      file.string(), tensor.file_offset - covered, quote_name(tensor.name)));
    }
    covered += tensor.num_bytes;
    previous = &tensor;
  }
  if (covered != file_bytes) {
    throw ModelError(
        fmt::format("{}: {} bytes at the end belong to no tensor; fetch or export the file again",
                    file.string(), file_bytes - covered));
  }
}

}  // namespace

const char* to_string(StoredDType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].name; }

std::size_t dtype_bytes(StoredDType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)].num_bytes;
}

std::string shape_to_string(std::span<const std::uint64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string quote_name(const std::string& name) {
  constexpr std::size_t kMostShown = 160;
  std::string shown = name.substr(0, kMostShown);
  std::replace_if(
      shown.begin(), shown.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return "'" + shown + (name.size() > kMostShown ? "...'" : "'");
}

std::vector<TensorInfo> parse_safetensors_header(const std::string& header,
                                                 std::uint64_t file_bytes,
                                                 const std::filesystem::path& file) {
  const Json parsed = parse_header_json(header, file);
  const std::uint64_t header_end = kLengthBytes + header.size();
  std::vector<TensorInfo> tensors;
  for (const auto& [name, entry] : parsed.items()) {
    if (name != "__metadata__") {
      tensors.push_back(EntryReader(name, entry, file).read(header_end, file_bytes));
    }
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.file_offset, a.num_bytes) < std::tie(b.file_offset, b.num_bytes);
  });
  check_coverage(tensors, header_end, file_bytes, file);
  return tensors;
}

}  // namespace fastfd::model
