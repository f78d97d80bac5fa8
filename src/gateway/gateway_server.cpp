#include "fastfd/gateway/gateway_server.h"

#include <fmt/format.h>
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <ctime>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "gateway/connection.h"
#include "gateway/gateway_core.h"

namespace fastfd::gateway {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

/// After the deadline of a drain: time for the last bytes to leave.
constexpr std::chrono::milliseconds kAbortTime{1000};
constexpr std::chrono::milliseconds kAcceptRetry{50};

/// A connection is a file; the usual soft limit of 1,024 is too few.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
      spdlog::warn("gateway: the limit of open files stays at its soft value");
    }
  }
}

std::string address_text(const GatewayOptions& options) {
  const bool ipv6 = options.host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", ipv6 ? "[" : "", options.host, ipv6 ? "]" : "", options.port);
}

[[noreturn]] void fail_to_listen(const GatewayOptions& options, const error_code& error) {
  std::string remedy = "check coordinator.http in the cluster file";
  if (error == asio::error::address_in_use) {
    remedy = "stop the program that has the port, or choose another port in coordinator.http";
  } else if (error == asio::error::access_denied) {
    remedy = "ports below 1024 need privileges; choose a higher port in coordinator.http";
  } else if (error == boost::system::errc::address_not_available ||
             error.category() == asio::error::get_netdb_category()) {
    remedy = "the host in coordinator.http must be an address of this machine; 0.0.0.0 means all";
  }
  throw std::runtime_error(fmt::format("cannot serve HTTP on {}: {}; {}", address_text(options),
                                       error.message(), remedy));
}

tcp::acceptor listen(asio::io_context& io, const GatewayOptions& options) {
  error_code error;
  tcp::resolver resolver(io);
  const auto found =
      resolver.resolve(options.host, std::to_string(options.port),
                       tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty()) {
    fail_to_listen(options, error);
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  tcp::acceptor acceptor(io);
  acceptor.open(endpoint.protocol(), error);
  if (!error) {
    acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  }
  if (!error) {
    acceptor.bind(endpoint, error);
  }
  if (!error) {
    acceptor.listen(options.backlog, error);
  }
  if (error) {
    fail_to_listen(options, error);
  }
  return acceptor;
}

}  // namespace

class GatewayServer::Impl {
 public:
  explicit Impl(GatewayOptions options)
      : core_(std::move(options)),
        acceptor_(listen(core_.io(), core_.options())),
        port_(acceptor_.local_endpoint().port()),
        work_(asio::make_work_guard(core_.io())) {
    raise_file_limit();
    asio::co_spawn(core_.io(), accept(), asio::detached);
    thread_ = std::thread([this] { serve(); });
  }

  ~Impl() { drain(std::chrono::steady_clock::now()); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  GatewayCore& core() { return core_; }
  std::uint16_t port() const { return port_; }

  void drain(std::chrono::steady_clock::time_point deadline) {
    const std::lock_guard lock(drain_mutex_);
    if (!thread_.joinable()) {
      return;
    }
    std::promise<void> drained;
    std::future<void> done = drained.get_future();
    // The port stays: who asks meanwhile is told, and a balancer sees that /ready has ended.
    asio::post(core_.io(),
               [this, &drained] { core_.start_draining([&drained] { drained.set_value(); }); });
    if (done.wait_until(deadline) != std::future_status::ready) {
      asio::post(core_.io(), [this] { core_.abort_connections(); });
      done.wait_for(kAbortTime);
    }
    std::promise<void> closed;
    asio::post(core_.io(), [this, &closed] {
      error_code ignored;
      acceptor_.close(ignored);
      closed.set_value();
    });
    closed.get_future().wait();
    core_.io().stop();
    thread_.join();
    core_.finish();
  }

  std::chrono::nanoseconds thread_cpu_time() {
    clockid_t clock{};
    timespec time{};
    const std::lock_guard lock(drain_mutex_);
    if (!thread_.joinable() || pthread_getcpuclockid(thread_.native_handle(), &clock) != 0 ||
        clock_gettime(clock, &time) != 0) {
      return {};
    }
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  }

 private:
  void serve() {
    pthread_setname_np(pthread_self(), "gateway");
    for (;;) {
      try {
        core_.io().run();
        return;
      } catch (const std::exception& error) {
        spdlog::error("gateway: {}", error.what());
      }
    }
  }

  asio::awaitable<void> accept() {
    asio::steady_timer retry(core_.io());
    while (acceptor_.is_open()) {
      error_code error;
      tcp::socket socket =
          co_await acceptor_.async_accept(asio::redirect_error(asio::use_awaitable, error));
      if (!error) {
        Connection::start(core_, std::move(socket));
      } else if (acceptor_.is_open()) {
        // Out of files or memory: clients wait in the backlog until some connection closes.
        spdlog::warn("gateway: cannot accept a connection: {}", error.message());
        retry.expires_after(kAcceptRetry);
        co_await retry.async_wait(asio::redirect_error(asio::use_awaitable, error));
      }
    }
  }

  GatewayCore core_;
  tcp::acceptor acceptor_;
  std::uint16_t port_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::mutex drain_mutex_;
  std::thread thread_;
};

GatewayServer::GatewayServer(GatewayOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

GatewayServer::~GatewayServer() = default;

std::uint16_t GatewayServer::port() const { return impl_->port(); }

void GatewayServer::set_model(ServedModel model) { impl_->core().set_model(std::move(model)); }

void GatewayServer::set_engine(EngineClient* engine) { impl_->core().set_engine(engine); }

void GatewayServer::drain(std::chrono::steady_clock::time_point deadline) {
  impl_->drain(deadline);
}

std::chrono::nanoseconds GatewayServer::thread_cpu_time() const { return impl_->thread_cpu_time(); }

}  // namespace fastfd::gateway
