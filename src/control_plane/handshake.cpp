#include <fmt/format.h>

#include "fastfd/control_plane/messages.h"

namespace fastfd::control_plane {
namespace {

/// Collects differences as "page size: the server has 32, the coordinator 16".
class Differences {
 public:
  template <typename T>
  void compare(const char* what, const T& ours, const T& theirs) {
    if (ours != theirs) {
      add(what, show(ours), show(theirs));
    }
  }
  void compare_hex(const char* what, std::uint64_t ours, std::uint64_t theirs) {
    if (ours != theirs) {
      add(what, fmt::format("{:016x}", ours), fmt::format("{:016x}", theirs));
    }
  }
  const std::string& text() const { return text_; }

 private:
  static std::string show(std::uint32_t value) { return std::to_string(value); }
  static std::string show(DType value) { return to_string(value); }
  static std::string show(Precision value) { return to_string(value); }

  void add(const char* what, const std::string& ours, const std::string& theirs) {
    text_ += fmt::format("{}{}: the server has {}, the coordinator {}", text_.empty() ? "" : "; ",
                         what, theirs, ours);
  }

  std::string text_;
};

/// Of a server that found out by itself what it has room for.
std::string why_pages_refused(const Contract& ours, std::uint32_t num_pages) {
  if (num_pages > kMaxPages) {
    return fmt::format(
        "KV pages: the server has {}, at most {} are possible; set "
        "attention.kv_cache.pages",
        num_pages, kMaxPages);
  }
  if (num_pages == 0 || std::uint64_t{num_pages} * ours.page_size < ours.max_model_len) {
    return fmt::format(
        "KV pages: the server has room for {} of {} tokens, which hold no sequence "
        "of max_model_len = {}; raise attention.gpu_memory_fraction or lower "
        "model.max_model_len",
        num_pages, ours.page_size, ours.max_model_len);
  }
  return {};
}

}  // namespace

std::string member_name(Role role, ServerRank rank) {
  return fmt::format("{} server {}", role == Role::kFfn ? "FFN" : "attention", rank);
}

std::string why_refused(const Contract& ours, const Registration& theirs) {
  const Contract& other = theirs.contract;
  if (ours.protocol_version != other.protocol_version) {
    // Nothing else in the message can be trusted to mean the same.
    return fmt::format(
        "protocol version: the server speaks {}, the coordinator {}; run the same FastFD version "
        "everywhere",
        other.protocol_version, ours.protocol_version);
  }
  if (theirs.role != Role::kAttention && theirs.role != Role::kFfn) {
    return fmt::format("role: {} servers can't join, only attention and ffn",
                       to_string(theirs.role));
  }
  Differences differences;
  differences.compare_hex("model fingerprint", ours.model_fingerprint, other.model_fingerprint);
  differences.compare("attention servers", ours.num_attention_servers, other.num_attention_servers);
  differences.compare("FFN servers", ours.num_ffn_servers, other.num_ffn_servers);
  differences.compare("rows of a lane", ours.max_lane_rows, other.max_lane_rows);
  differences.compare("hidden dimension", ours.hidden_dim, other.hidden_dim);
  differences.compare("routes of a row", ours.max_routes_per_row, other.max_routes_per_row);
  differences.compare("layers", ours.num_layers, other.num_layers);
  differences.compare("dispatch dtype", ours.dispatch_dtype, other.dispatch_dtype);
  differences.compare("combine dtype", ours.combine_dtype, other.combine_dtype);
  differences.compare("precision", ours.precision, other.precision);
  differences.compare("KV pages", ours.num_pages, other.num_pages);
  differences.compare("page size", ours.page_size, other.page_size);
  differences.compare("KV dtype", ours.kv_dtype, other.kv_dtype);
  differences.compare("sequence slots", ours.num_slots, other.num_slots);
  differences.compare("max_model_len", ours.max_model_len, other.max_model_len);
  differences.compare("experts", ours.num_experts, other.num_experts);
  differences.compare("expert replicas", ours.expert_replicas, other.expert_replicas);
  if (!differences.text().empty()) {
    return differences.text() +
           "; start every process with the same cluster file and the same model folder";
  }
  const std::uint32_t num_servers =
      theirs.role == Role::kFfn ? ours.num_ffn_servers : ours.num_attention_servers;
  if (theirs.rank >= num_servers) {
    return fmt::format("rank: the server has {}, the coordinator expects {} ranks 0..{}",
                       theirs.rank, theirs.role == Role::kFfn ? "FFN" : "attention",
                       num_servers - 1);
  }
  return theirs.role == Role::kAttention && ours.num_pages == 0
             ? why_pages_refused(ours, theirs.num_pages)
             : std::string();
}

}  // namespace fastfd::control_plane
