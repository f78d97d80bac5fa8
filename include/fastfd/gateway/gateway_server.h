#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fastfd/core/engine_client.h"
#include "fastfd/core/ids.h"
#include "fastfd/gateway/text_service.h"

namespace fastfd::gateway {

struct GatewayOptions {
  std::string host = "127.0.0.1";  ///< an IPv4 or IPv6 address, or "localhost"
  std::uint16_t port = 8000;       ///< 0: any free one, see GatewayServer::port()
  int backlog = 4096;
  std::size_t max_body_bytes = std::size_t{16} << 20;
  std::uint32_t max_header_bytes = 64U << 10;
  /// Response bytes that may wait for a client who doesn't read; then its request is aborted.
  std::size_t max_unsent_bytes = std::size_t{1} << 20;
  std::uint32_t max_sequences_per_request = 128;  ///< prompts x n
  /// Kept-alive connection without a request.
  std::chrono::milliseconds idle_timeout{75'000};
  /// From a request's first byte to the end of its head; then again to the end of its body.
  std::chrono::milliseconds request_timeout{30'000};
  /// Response bytes wait and the client takes none. Says nothing of how long generating may take.
  std::chrono::milliseconds write_timeout{60'000};
  std::chrono::seconds retry_after{1};  ///< Retry-After of 429 and 503
  /// Requests whose body is longer are parsed and tokenized off the gateway thread, so that they
  /// don't delay the tokens of others.
  std::size_t max_inline_body_bytes = std::size_t{16} << 10;
};

/// What a request that doesn't say is sampled with (generation_config.json).
struct SamplingDefaults {
  bool do_sample = true;  ///< false: temperature 0
  float temperature = 1.0F;
  float top_p = 1.0F;
  std::int32_t top_k = 0;
  float min_p = 0.0F;
  float repetition_penalty = 1.0F;
};

/// How the answers of a chat model that thinks aloud are split into `reasoning_content` and
/// `content`.
enum class Reasoning : std::uint8_t {
  kNone,      ///< not at all
  kTagged,    ///< from "<think>", written by the model or at the prompt's end, to "</think>"
  kImplied,   ///< as kTagged, and an answer without the tag begins with reasoning as well
  kChannels,  ///< messages in channel "analysis" (text->channel_tokens())
};

/// The model that the gateway offers.
struct ServedModel {
  std::string name;                 ///< what requests call it
  std::uint32_t max_model_len = 0;  ///< tokens, prompt and output together
  std::uint32_t vocab_size = 0;     ///< of the model; legal token ids are below
  SamplingDefaults sampling;
  std::vector<TokenId> eos_token_ids;
  std::shared_ptr<const TextService> text;
  Reasoning reasoning = Reasoning::kNone;
};

/// The HTTP face of a coordinator: OpenAI-compatible endpoints, server-sent events, health and
/// metrics, on one thread of its own (and one more for long prompts). All functions may be called
/// from any thread but the gateway's.
///
/// Life: construct (the port is taken at once), set_model, set_engine, drain, destroy. Until both
/// are set, and whenever the engine's state is not ready, requests get 503 in OpenAI's form.
/// The engine must live until drain() or the destructor has returned.
class GatewayServer {
 public:
  /// Binds, listens and serves. Raises the soft limit of open files to the hard one. Throws
  /// std::runtime_error that names address and remedy when the port can't be had.
  explicit GatewayServer(GatewayOptions options);
  /// As drain() with no time to finish.
  ~GatewayServer();
  GatewayServer(const GatewayServer&) = delete;
  GatewayServer& operator=(const GatewayServer&) = delete;

  /// The port that was bound.
  std::uint16_t port() const;

  /// Throws std::invalid_argument if the name is empty, the length 0 or the text service missing.
  /// Call once.
  void set_model(ServedModel model);

  /// From now on requests go to `engine`; nullptr: to none any more.
  void set_engine(EngineClient* engine);

  /// Stops accepting connections and requests, lets running requests finish, aborts those that
  /// have not by `deadline`, closes every connection. Blocks until then. Idempotent.
  void drain(std::chrono::steady_clock::time_point deadline);

  /// CPU time of the gateway thread so far, for benchmarks.
  std::chrono::nanoseconds thread_cpu_time() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastfd::gateway
