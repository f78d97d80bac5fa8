#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "fastfd/launcher/http_probe.h"
#include "fastfd/launcher/launch.h"

namespace fastfd::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Listens on a free port of 127.0.0.1 and answers one connection with a fixed text.
class OneShotServer {
 public:
  OneShotServer() : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t address_bytes = sizeof address;
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(fd_, 4), 0);
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &address_bytes);
    port_ = ntohs(address.sin_port);
  }
  ~OneShotServer() { ::close(fd_); }
  OneShotServer(const OneShotServer&) = delete;
  OneShotServer& operator=(const OneShotServer&) = delete;

  std::uint16_t port() const { return port_; }

  std::string answer(const std::string& reply) const {
    const int connection = ::accept(fd_, nullptr, nullptr);
    std::string request(4096, '\0');
    const ssize_t got = ::recv(connection, request.data(), request.size(), 0);
    request.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    EXPECT_EQ(::send(connection, reply.data(), reply.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(reply.size()));
    ::close(connection);
    return request;
  }

 private:
  int fd_;
  std::uint16_t port_ = 0;
};

TEST(HttpProbe, ReadsStatusAndBody) {
  const OneShotServer server;
  std::string request;
  std::thread answering([&] {
    request = server.answer("HTTP/1.1 503 Service Unavailable\r\nX: y\r\n\r\nwaiting for ffn 1");
  });
  const auto reply =
      http_get("127.0.0.1", server.port(), "/ready", std::chrono::milliseconds(20'000));
  answering.join();
  ASSERT_TRUE(reply.is_ok()) << reply.status().to_string();
  EXPECT_EQ(reply->status, 503);
  EXPECT_EQ(reply->body, "waiting for ffn 1");
  EXPECT_THAT(request, HasSubstr("GET /ready HTTP/1.0\r\n"));
}

TEST(HttpProbe, TellsSilenceRefusalAndNonsenseApart) {
  const OneShotServer silent;
  const auto timed_out =
      http_get("127.0.0.1", silent.port(), "/ready", std::chrono::milliseconds(50));
  EXPECT_EQ(timed_out.status().code(), StatusCode::kDeadlineExceeded);

  std::uint16_t closed_port = 0;
  {
    const OneShotServer gone;
    closed_port = gone.port();
  }
  const auto refused =
      http_get("127.0.0.1", closed_port, "/ready", std::chrono::milliseconds(20'000));
  EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(refused.status().message(), HasSubstr(std::to_string(closed_port)));

  const OneShotServer other;
  std::thread answering([&] { other.answer("SSH-2.0-OpenSSH_9.2\r\n"); });
  const auto nonsense =
      http_get("127.0.0.1", other.port(), "/ready", std::chrono::milliseconds(20'000));
  answering.join();
  EXPECT_EQ(nonsense.status().code(), StatusCode::kInternal);
}

TEST(HttpProbe, ReachesWildcardListenersThroughLoopback) {
  EXPECT_EQ(reachable_host("0.0.0.0"), "127.0.0.1");
  EXPECT_EQ(reachable_host("::"), "::1");
  EXPECT_EQ(reachable_host("10.0.0.3"), "10.0.0.3");
}

TEST(PortCheck, NamesTheTakenPortAndItsKey) {
  const OneShotServer taken;
  config::ClusterConfig config;
  config.source = "cluster.yaml";
  config.coordinator.http = {"127.0.0.1", taken.port()};
  {
    const OneShotServer free;
    config.coordinator.control = {"127.0.0.1", free.port()};
  }
  try {
    check_ports_free(config);
    FAIL() << "a taken port was accepted";
  } catch (const LaunchError& error) {
    EXPECT_THAT(error.what(), HasSubstr(std::to_string(taken.port())));
    EXPECT_THAT(error.what(), HasSubstr("coordinator.http"));
    EXPECT_THAT(error.what(), HasSubstr("cluster.yaml"));
  }
  std::swap(config.coordinator.http, config.coordinator.control);
  EXPECT_THROW(check_ports_free(config), LaunchError);
  config.coordinator.control = config.coordinator.http;
  EXPECT_NO_THROW(check_ports_free(config));
  config.coordinator.http.host = "no such host";
  EXPECT_THROW(check_ports_free(config), LaunchError);
}

TEST(PortCheck, RefusesPortsThatNobodyCouldBeTold) {
  config::ClusterConfig config;
  config.source = "cluster.yaml";
  config.coordinator.http = {"::1", 0};
  try {
    check_ports_free(config);
    FAIL() << "port 0 was accepted";
  } catch (const LaunchError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cluster.yaml: coordinator.http: port 0"));
    EXPECT_THAT(error.what(), HasSubstr("\"[::1]:8000\""));
    EXPECT_THAT(error.what(), HasSubstr("--http HOST:PORT"));
  }
}

TEST(ClusterChildren, OneProcessARoleAndRank) {
  config::ClusterConfig config;
  config.attention.servers = 2;
  config.ffn.servers = 1;
  const auto children = cluster_children(config, "/bin/fastfd", "/run/c.yaml");
  ASSERT_EQ(children.size(), 4U);
  EXPECT_EQ(children[0].name, "coordinator");
  EXPECT_THAT(children[0].argv,
              ElementsAre("/bin/fastfd", "coordinator", "--config", "/run/c.yaml"));
  EXPECT_FALSE(children[0].restart);
  EXPECT_EQ(children[2].name, "attention 1");
  EXPECT_THAT(children[2].argv, ElementsAre("/bin/fastfd", "attention-server", "--config",
                                            "/run/c.yaml", "--rank", "1"));
  EXPECT_THAT(children[3].argv,
              ElementsAre("/bin/fastfd", "ffn-server", "--config", "/run/c.yaml", "--rank", "0"));
  EXPECT_TRUE(children[3].restart);
  EXPECT_GT(children[3].stop_order, children[0].stop_order);
}

TEST(Launch, RefusesATransportThatNeedsOneProcess) {
  config::ClusterConfig config;
  config.transport.kind = config::TransportKind::kInproc;
  EXPECT_THROW(run_launch(config, {}), LaunchError);
}

}  // namespace
}  // namespace fastfd::launcher
