#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "fastfd/gateway/gateway_server.h"
#include "http/fake_engine.h"
#include "http/fake_text.h"
#include "http/http_client.h"

namespace fastfd::gateway {

/// A gateway on a free port before a fake engine.
class GatewayFixture : public ::testing::Test {
 protected:
  static GatewayOptions test_options() {
    GatewayOptions options;
    options.port = 0;
    return options;
  }

  explicit GatewayFixture(const GatewayOptions& options = test_options(),
                          std::uint32_t max_model_len = 4096)
      : GatewayFixture(options, make_fake_model(max_model_len)) {}

  GatewayFixture(const GatewayOptions& options, ServedModel model)
      : gateway_(std::make_unique<GatewayServer>(options)) {
    gateway_->set_model(std::move(model));
    gateway_->set_engine(&engine_);
  }

  // The gateway lets go of the engine, the engine stops, the gateway goes.
  ~GatewayFixture() override { gateway_->drain(std::chrono::steady_clock::now()); }

  std::uint16_t port() const { return gateway_->port(); }

  ClientResponse exchange(const std::string& method, const std::string& target,
                          const std::string& body = {}) const {
    HttpClient client(port());
    return client.exchange(method, target, body);
  }
  ClientResponse chat(const nlohmann::json& fields = nlohmann::json::object()) const {
    return exchange("POST", "/v1/chat/completions", chat_body(fields).dump());
  }
  ClientResponse complete(const nlohmann::json& fields = nlohmann::json::object()) const {
    return exchange("POST", "/v1/completions", completion_body(fields).dump());
  }

  static nlohmann::json chat_body(const nlohmann::json& fields = nlohmann::json::object()) {
    nlohmann::json body = {{"model", kFakeModelName},
                           {"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
    body.update(fields);
    return body;
  }
  static nlohmann::json completion_body(const nlohmann::json& fields = nlohmann::json::object()) {
    nlohmann::json body = {{"model", kFakeModelName}, {"prompt", "Once"}, {"max_tokens", 100}};
    body.update(fields);
    return body;
  }

  /// The text of choice `index` of a stream.
  static std::string streamed_text(const ClientResponse& response, int index = 0) {
    std::string text;
    for (const std::string& event : response.events()) {
      if (event == "[DONE]") {
        continue;
      }
      const auto chunk = nlohmann::json::parse(event);
      if (!chunk.contains("choices")) {
        continue;  // an error
      }
      for (const auto& choice : chunk["choices"]) {
        if (choice["index"] == index) {
          text += choice.contains("text") ? choice["text"].get<std::string>()
                                          : choice["delta"].value("content", "");
        }
      }
    }
    return text;
  }

  std::unique_ptr<GatewayServer> gateway_;
  FakeEngine engine_;  // destroyed first: its thread calls the gateway
};

}  // namespace fastfd::gateway
