#include "bench/load_generator.h"

#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cmath>
#include <csignal>
#include <deque>
#include <exception>
#include <random>
#include <utility>

#include "bench/http_client.h"

namespace fastfd::bench {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;

void rethrow(const std::exception_ptr& error) {
  if (error) {
    std::rethrow_exception(error);
  }
}

void raise_open_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

Clock::duration to_duration(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

constexpr Clock::duration kFirstBackoff = std::chrono::milliseconds(100);
constexpr Clock::duration kLongestBackoff = std::chrono::seconds(1);

/// Whether anything came back, an error or half of a stream included.
bool was_answered(const RequestRecord& record) {
  const bool silent_close = record.failure == FailureKind::kBrokenStream && !record.has_token;
  return record.failure != FailureKind::kConnect && !silent_close;
}

/// One run: its event loop and its records.
class LoadRun {
 public:
  LoadRun(const HttpTarget& target, const Dialect& dialect, const Workload& workload,
          const Arrivals& arrivals, const std::function<void(const LoadProgress&)>& on_progress)
      : client_(io_, target),
        dialect_(dialect),
        workload_(workload),
        arrivals_(arrivals),
        on_progress_(on_progress) {}

  LoadResult run() {
    asio::signal_set signals(io_, SIGINT, SIGTERM);
    signals.async_wait([this](const boost::system::error_code& error, int) {
      if (!error) {
        interrupted_ = true;
        io_.stop();
      }
    });
    begin_ = Clock::now();
    client_.set_begin(begin_);
    if (arrivals_.request_rate) {
      asio::co_spawn(io_, arrive(), rethrow);
    } else {
      all_arrived_ = true;
      in_flight_ = arrivals_.concurrency;
      for (std::uint32_t i = 0; i < arrivals_.concurrency; ++i) {
        asio::co_spawn(io_, repeat(), rethrow);
      }
    }
    asio::co_spawn(io_, report_progress(), rethrow);
    io_.run();
    LoadResult result{{}, interrupted_, given_up_};
    result.records.reserve(records_.size());
    for (RequestRecord& record : records_) {
      if (record.failure == FailureKind::kCancelled) {
        record.end_s = client_.now_s();
      }
      result.records.push_back(std::move(record));
    }
    return result;
  }

 private:
  /// Whether a request that is due at `due_s` belongs to this run.
  bool may_begin(double due_s) const {
    return !given_up_ &&
           (arrivals_.num_requests == 0 || records_.size() < arrivals_.num_requests) &&
           (arrivals_.duration_s <= 0 || due_s < arrivals_.duration_s);
  }

  /// A client of the closed loop: the next request when the last one has ended.
  asio::awaitable<void> repeat() {
    asio::steady_timer timer(io_);
    Clock::duration backoff = kFirstBackoff;
    while (may_begin(client_.now_s())) {
      const std::uint64_t index = records_.size();
      RequestRecord& record = records_.emplace_back();
      record.start_s = client_.now_s();
      co_await run_request(record, index);
      if (was_answered(record)) {
        answered_s_ = client_.now_s();
      }
      if (record.ok()) {
        backoff = kFirstBackoff;
        continue;
      }
      // A server that is gone, restarting or full refuses at once: without a pause this loop would
      // only count refusals.
      given_up_ = given_up_ || client_.now_s() - answered_s_ > arrivals_.give_up_after_s;
      if (may_begin(client_.now_s())) {
        timer.expires_after(backoff);
        co_await timer.async_wait(asio::use_awaitable);
        backoff = std::min(2 * backoff, kLongestBackoff);
      }
    }
    --in_flight_;
    stop_if_over();
  }

  /// The open loop: requests come whether or not the last ones have ended.
  asio::awaitable<void> arrive() {
    std::mt19937_64 generator(arrivals_.seed);
    asio::steady_timer timer(io_);
    double due_s = 0;
    while (may_begin(due_s)) {
      timer.expires_at(begin_ + to_duration(due_s));
      co_await timer.async_wait(asio::use_awaitable);
      records_.emplace_back().start_s = due_s;
      begin_waiting();
      constexpr double kTwoToMinus53 = 1.0 / 9007199254740992.0;
      const double uniform = static_cast<double>(generator() >> 11) * kTwoToMinus53;  // in [0, 1)
      due_s += -std::log1p(-uniform) / *arrivals_.request_rate;
    }
    all_arrived_ = true;
    stop_if_over();
  }

  /// Begins requests that have arrived, as far as the limit on requests in flight allows.
  void begin_waiting() {
    while (num_begun_ < records_.size() &&
           (arrivals_.concurrency == 0 || in_flight_ < arrivals_.concurrency)) {
      ++in_flight_;
      asio::co_spawn(io_, run_arrived(num_begun_++), rethrow);
    }
  }

  asio::awaitable<void> run_arrived(std::size_t position) {
    co_await run_request(records_[position], position);
    --in_flight_;
    begin_waiting();
    stop_if_over();
  }

  void stop_if_over() {
    if (all_arrived_ && in_flight_ == 0) {
      io_.stop();
    }
  }

  asio::awaitable<void> run_request(RequestRecord& record, std::uint64_t index) {
    const std::string body = request_body(dialect_, workload_.item(arrivals_.first_item + index));
    co_await client_.post_streaming(endpoint_path(dialect_.endpoint), body, record);
    ++progress_.finished;
    progress_.failed += record.ok() ? 0 : 1;
  }

  asio::awaitable<void> report_progress() {
    asio::steady_timer timer(io_);
    while (true) {
      timer.expires_after(std::chrono::milliseconds(100));
      co_await timer.async_wait(asio::use_awaitable);
      progress_.elapsed_s = client_.now_s();
      progress_.started = records_.size();
      progress_.token_chunks = client_.token_chunks();
      if (on_progress_) {
        on_progress_(progress_);
      }
    }
  }

  // First, so that it goes last: connections and suspended requests need it.
  asio::io_context io_{1};
  HttpClient client_;
  const Dialect& dialect_;
  const Workload& workload_;
  const Arrivals& arrivals_;
  const std::function<void(const LoadProgress&)>& on_progress_;
  Clock::time_point begin_;
  std::deque<RequestRecord> records_;  // references stay valid while it grows
  std::size_t num_begun_ = 0;          // open loop: records that are in flight or over
  std::uint64_t in_flight_ = 0;        // requests; in the closed loop clients that go on
  bool all_arrived_ = false;
  bool interrupted_ = false;
  double answered_s_ = 0;  // closed loop: when a connection was last answered
  bool given_up_ = false;
  LoadProgress progress_;
};

}  // namespace

class LoadGenerator::Impl {
 public:
  Impl(const Url& url, std::string api_key, double timeout_s)
      : target_{url, std::move(api_key), {}, to_duration(timeout_s)} {
    raise_open_file_limit();
    asio::io_context io;
    boost::system::error_code error;
    const auto found = tcp::resolver(io).resolve(url.host, std::to_string(url.port), error);
    if (error) {
      throw BenchError(url.to_string() + ": host '" + url.host + "' is unknown (" +
                       error.message() + "); check --url");
    }
    for (const auto& entry : found) {
      target_.endpoints.push_back(entry.endpoint());
    }
  }

  WholeReply get(const std::string& path) const {
    asio::io_context io;
    HttpTarget target = target_;
    // A metadata request that takes longer means a server that hangs.
    target.timeout = std::min<Clock::duration>(target.timeout, std::chrono::seconds(10));
    HttpClient client(io, target);
    WholeReply reply;
    asio::co_spawn(io, client.get(path, reply), rethrow);
    io.run();
    return reply;
  }

  const HttpTarget& target() const { return target_; }

 private:
  HttpTarget target_;
};

LoadGenerator::LoadGenerator(const Url& url, std::string api_key, double timeout_s)
    : impl_(std::make_unique<Impl>(url, std::move(api_key), timeout_s)) {}
LoadGenerator::~LoadGenerator() = default;

WholeReply LoadGenerator::get(const std::string& path) { return impl_->get(path); }

LoadResult LoadGenerator::run(const Dialect& dialect, const Workload& workload,
                              const Arrivals& arrivals,
                              const std::function<void(const LoadProgress&)>& on_progress) {
  return LoadRun(impl_->target(), dialect, workload, arrivals, on_progress).run();
}

}  // namespace fastfd::bench
