// A gateway before the fake engine, for client tests in other languages: prints its port, serves
// until its standard input ends.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>

#include "fastfd/gateway/gateway_server.h"
#include "http/fake_engine.h"
#include "http/fake_text.h"

int main() {
  using namespace fastfd::gateway;
  GatewayOptions options;
  options.port = 0;
  GatewayServer gateway(options);
  FakeEngine engine;
  engine.set_reply("The quick brown fox jumps over the lazy dog. \xE2\x82\xAC 5 \xF0\x9F\xA6\x8A!");
  engine.set_step_delay(std::chrono::milliseconds(1));
  gateway.set_model(make_fake_model());
  gateway.set_engine(&engine);
  std::cout << gateway.port() << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
  }
  gateway.drain(std::chrono::steady_clock::now());
  return 0;
}
