#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "fastfd/device/cuda.h"
#include "fastfd/device/cuda_window.h"
#include "fastfd/device/sm_partition.h"
#include "tests/gpu/peer_process.h"
#include "tests/gpu/probe_kernels.h"

namespace fastfd::device {
namespace {

using layout::AbortReason;
using layout::AbortState;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;

#define ASSERT_OK(expression)                                  \
  do {                                                         \
    const Status status_of_call = (expression);                \
    ASSERT_TRUE(status_of_call) << status_of_call.to_string(); \
  } while (false)

/// Every kernel of these tests ends by itself.
constexpr std::uint64_t kBoundNs = 5'000'000'000;

class DeviceCudaTest : public ::testing::Test {
 protected:
  template <typename T>
  T on_host(const DeviceBuffer& buffer, std::size_t index = 0) {
    const PinnedBuffer host(gpu_, sizeof(T));
    const DeviceStream stream(gpu_);
    EXPECT_TRUE(copy_async(host.data(), buffer.as<T>() + index, sizeof(T), stream.handle()));
    EXPECT_TRUE(stream.synchronize());
    return *host.as<T>();
  }

  DeviceBuffer zeros(std::size_t num_bytes) {
    DeviceBuffer buffer(gpu_, num_bytes);
    const DeviceStream stream(gpu_);
    EXPECT_TRUE(fill_async(buffer.data(), 0, num_bytes, stream.handle()));
    EXPECT_TRUE(stream.synchronize());
    return buffer;
  }

  CudaDevice gpu_ = CudaDevice::open(0);
};

TEST_F(DeviceCudaTest, SaysWhatItIs) {
  EXPECT_FALSE(gpu_.name().empty());
  EXPECT_GT(gpu_.num_sms(), 0U);
  EXPECT_THAT(gpu_.to_string(), HasSubstr("cuda:0 ("));
  const auto memory = gpu_.memory();
  ASSERT_TRUE(memory);
  EXPECT_GT(memory->free_bytes, 0U);
  EXPECT_LE(memory->free_bytes, memory->total_bytes);
  std::printf("%s, compute capability %u.%u, MPS %s\n", gpu_.to_string().c_str(),
              gpu_.compute_major(), gpu_.compute_minor(), gpu_.uses_mps() ? "on" : "off");
  try {
    CudaDevice::open(63);
    FAIL() << "there is no GPU 63";
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cuda:63 is not there; this process sees "));
  }
}

TEST_F(DeviceCudaTest, CopiesAndFills) {
  constexpr std::size_t kWords = 10'007;
  const PinnedBuffer from(gpu_, kWords * 4);
  const PinnedBuffer to(gpu_, kWords * 4);
  const DeviceBuffer there(gpu_, kWords * 4);
  std::iota(from.as<std::uint32_t>(), from.as<std::uint32_t>() + kWords, 7U);
  const DeviceStream stream(gpu_, kHighestPriority);
  ASSERT_OK(copy_async(there.data(), from.data(), kWords * 4, stream.handle()));
  ASSERT_OK(fill_async(there.data(), 0xab, 4, stream.handle()));
  ASSERT_OK(copy_async(to.data(), there.data(), kWords * 4, stream.handle()));
  ASSERT_OK(copy_async(nullptr, nullptr, 0, stream.handle()));
  ASSERT_OK(stream.synchronize());
  EXPECT_EQ(to.as<std::uint32_t>()[0], 0xababababU);
  for (std::size_t i = 1; i < kWords; ++i) {
    ASSERT_EQ(to.as<std::uint32_t>()[i], 7 + i);
  }
  EXPECT_TRUE(*stream.is_idle());
}

TEST_F(DeviceCudaTest, TooLargeABufferIsAnErrorWithTheArithmetic) {
  try {
    const DeviceBuffer buffer(gpu_, std::size_t{1} << 44);
    FAIL() << "16 TiB on one GPU";
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("no 16384.000 GiB of device memory ("),
                                    HasSubstr(" GiB are free")));
  }
  const auto window = DeviceWindow::create(gpu_, std::size_t{1} << 44);
  EXPECT_EQ(window.status().code(), StatusCode::kResourceExhausted) << window.status().to_string();
  ASSERT_OK(gpu_.synchronize());  // nothing sticks
}

TEST_F(DeviceCudaTest, EventsOrderStreamsAndMeasure) {
  const auto counter = zeros(4);
  const auto state = zeros(sizeof(AbortState));
  const auto flag = zeros(8);
  const PinnedBuffer words(gpu_, 256);
  const DeviceStream first(gpu_);
  const DeviceStream second(gpu_);
  const DeviceEvent start(gpu_, {.timing = true});
  const DeviceEvent end(gpu_, {.timing = true, .sleeps = true});
  ASSERT_OK(start.record(first.handle()));
  // The first stream waits 20 ms for a flag that nobody raises; the second runs after it.
  ASSERT_OK(
      testing::launch_wait({words.as<std::uint32_t>(),
                            flag.as<std::uint64_t>(),
                            1,
                            {words.as<std::uint32_t>() + 1, state.as<AbortState>(), 20'000'000}},
                           first.handle()));
  ASSERT_OK(end.record(first.handle()));
  ASSERT_OK(second.wait(end));
  ASSERT_OK(testing::launch_count({state.as<AbortState>(), counter.as<std::uint32_t>()},
                                  second.handle()));
  ASSERT_OK(second.synchronize());
  EXPECT_TRUE(*end.has_passed());
  ASSERT_OK(end.synchronize());
  const auto elapsed = end.elapsed_ms(start);
  ASSERT_TRUE(elapsed);
  EXPECT_GE(*elapsed, 19.0F);
  EXPECT_EQ(on_host<std::uint32_t>(counter), 0U) << "the second kernel saw the first one's result";
  EXPECT_EQ(on_host<AbortState>(state).reason, AbortReason::kTimedOut);
}

TEST_F(DeviceCudaTest, AWindowIsZeroAndMapsTwice) {
  constexpr std::size_t kBytes = 3 << 20;
  auto created = DeviceWindow::create(gpu_, kBytes);
  ASSERT_TRUE(created) << created.status().to_string();
  EXPECT_EQ(created->num_bytes(), kBytes);
  EXPECT_GE(created->mapped_bytes(), kBytes);
  std::printf("a window of %zu bytes takes %zu\n", kBytes, created->mapped_bytes());
  const auto fd = created->export_fd();
  ASSERT_TRUE(fd) << fd.status().to_string();
  const transport::UniqueFd owned(*fd);
  auto imported = DeviceWindow::map_peer(gpu_, owned.get(), kBytes);
  ASSERT_TRUE(imported) << imported.status().to_string();
  EXPECT_NE(imported->data(), created->data());

  const PinnedBuffer host(gpu_, kBytes);
  const DeviceStream stream(gpu_);
  ASSERT_OK(fill_async(host.data(), 1, kBytes, stream.handle()));
  ASSERT_OK(copy_async(host.data(), imported->data(), kBytes, stream.handle()));
  ASSERT_OK(stream.synchronize());
  EXPECT_EQ(std::count(host.data(), host.data() + kBytes, std::byte{0}), kBytes);

  // What is written through one address is read through the other, also when the owner has gone.
  ASSERT_OK(fill_async(created->data(), 5, kBytes, stream.handle()));
  ASSERT_OK(stream.synchronize());
  created = Status(StatusCode::kNotFound, "gone");
  ASSERT_OK(copy_async(host.data(), imported->data(), kBytes, stream.handle()));
  ASSERT_OK(stream.synchronize());
  EXPECT_EQ(std::count(host.data(), host.data() + kBytes, std::byte{5}), kBytes);
}

TEST_F(DeviceCudaTest, RefusesWindowsThatAreNone) {
  EXPECT_EQ(DeviceWindow::create(gpu_, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(DeviceWindow::map_peer(gpu_, 0, 4096)) << "standard input is no window";
}

/// Two launches that each fill a part of the SMs and wait for all blocks of the other.
struct Halves {
  std::vector<std::uint32_t> num_sms;
  std::set<std::uint32_t> sms[2];
  std::uint32_t num_lonely = 0;
};

class PartitionConcurrentTest : public DeviceCudaTest {
 protected:
  /// With `as_graphs`, each launch is captured on its partition's stream first.
  Halves run_halves(double share, bool as_graphs) {
    Halves result;
    const std::vector<double> shares{share, 1.0 - share};
    const auto words = zeros(4096);
    const auto sm_ids = zeros(2 * 1024 * 4);
    std::uint32_t* counts = words.as<std::uint32_t>();
    std::vector<SmPartition> parts;
    std::vector<DeviceStream> streams;
    std::vector<DeviceGraph> graphs;
    for (std::size_t i = 0; i < 2; ++i) {
      parts.push_back(SmPartition::create(gpu_, shares, i));
      streams.push_back(parts[i].make_stream());
      result.num_sms.push_back(parts[i].num_sms());
    }
    for (std::size_t i = 0; i < 2; ++i) {
      const testing::OccupyParams params{parts[i].num_sms(),
                                         sm_ids.as<std::uint32_t>() + 1024 * i,
                                         counts + 32 * i,
                                         counts + 32 * (1 - i),
                                         parts[1 - i].num_sms(),
                                         kBoundNs,
                                         counts + 64};
      const auto enqueue = [&, i] { return testing::launch_occupy(params, streams[i].handle()); };
      if (as_graphs) {
        auto graph = DeviceGraph::capture(streams[i], enqueue);
        EXPECT_TRUE(graph) << graph.status().to_string();
        graphs.push_back(std::move(*graph));
      } else {
        EXPECT_TRUE(enqueue());
      }
    }
    for (std::size_t i = 0; i < graphs.size(); ++i) {
      EXPECT_TRUE(graphs[i].launch(streams[i].handle()));
    }
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(streams[i].synchronize());
      for (std::uint32_t cta = 0; cta < result.num_sms[i]; ++cta) {
        result.sms[i].insert(on_host<std::uint32_t>(sm_ids, 1024 * i + cta));
      }
    }
    result.num_lonely = on_host<std::uint32_t>(words, 64);
    return result;
  }

  void expect_apart(const Halves& halves) {
    EXPECT_EQ(halves.num_lonely, 0U) << "blocks of one half ran while those of the other did not";
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(halves.sms[i].size(), halves.num_sms[i]);
    }
    std::vector<std::uint32_t> common;
    std::set_intersection(halves.sms[0].begin(), halves.sms[0].end(), halves.sms[1].begin(),
                          halves.sms[1].end(), std::back_inserter(common));
    EXPECT_TRUE(common.empty()) << common.size() << " SMs ran blocks of both";
  }
};

TEST_F(PartitionConcurrentTest, HalvesRunAtTheSameTimeOnTheirOwnSms) {
  const Halves halves = run_halves(0.5, false);
  std::printf("halves of %u SMs: %u and %u\n", gpu_.num_sms(), halves.num_sms[0],
              halves.num_sms[1]);
  EXPECT_EQ(halves.num_sms[0] + halves.num_sms[1], gpu_.num_sms());
  expect_apart(halves);
}

TEST_F(PartitionConcurrentTest, UnequalPartsToo) {
  const Halves parts = run_halves(0.25, false);
  std::printf("a quarter of %u SMs: %u\n", gpu_.num_sms(), parts.num_sms[0]);
  expect_apart(parts);
}

TEST_F(PartitionConcurrentTest, GraphsStayOnThePartitionTheyWereCapturedOn) {
  expect_apart(run_halves(0.5, true));
}

TEST_F(PartitionConcurrentTest, AStreamKeepsItsPartitionAlive) {
  auto stream = SmPartition::create(gpu_, std::vector{0.25}, 0).make_stream();
  const auto counter = zeros(4);
  const auto state = zeros(sizeof(AbortState));
  ASSERT_OK(testing::launch_count({state.as<AbortState>(), counter.as<std::uint32_t>()},
                                  stream.handle()));
  ASSERT_OK(stream.synchronize());
  EXPECT_EQ(on_host<std::uint32_t>(counter), 1U);
  stream = DeviceStream(gpu_);  // the old one goes, and its partition with it
  ASSERT_OK(stream.synchronize());
}

TEST_F(DeviceCudaTest, FootprintsAreOnTheSafeSideOfTheOccupancyApi) {
  const auto footprint =
      cta_footprint(gpu_, testing::occupy_kernel_address(), "occupy",
                    testing::occupy_block_threads(), testing::occupy_shared_bytes());
  EXPECT_EQ(footprint.kernel, "occupy");
  EXPECT_GT(footprint.registers_per_thread, 0U);
  const SmLimits sm = sm_limits(gpu_);
  EXPECT_EQ(static_cast<int>(ctas_per_sm(sm, footprint)), testing::occupy_max_ctas_per_sm());
  std::printf("an SM: %u threads, %u blocks, %u registers, %zu + %zu bytes of shared memory\n",
              sm.max_threads, sm.max_ctas, sm.registers, sm.shared_bytes, sm.reserved_shared_bytes);
}

/// A graph of a wait and a kernel behind it, and what ends the wait.
class AbortConcurrentTest : public DeviceCudaTest {
 protected:
  void capture(std::uint64_t timeout_ns) {
    auto graph = DeviceGraph::capture(stream_, [&] {
      Status status = testing::launch_wait({words_.as<std::uint32_t>(),
                                            flag_.as<std::uint64_t>(),
                                            1,
                                            {abort_word(), state_.as<AbortState>(), timeout_ns}},
                                           stream_.handle());
      return status ? testing::launch_count({state_.as<AbortState>(), counter_.as<std::uint32_t>()},
                                            stream_.handle())
                    : status;
    });
    ASSERT_TRUE(graph) << graph.status().to_string();
    EXPECT_EQ(graph->num_nodes(), 2U);
    graph_.emplace(std::move(*graph));
  }

  std::uint32_t* abort_word() { return words_.as<std::uint32_t>() + 32; }

  void wait_until_it_spins() {
    const auto end = steady_clock::now() + std::chrono::seconds(5);
    while (std::atomic_ref<std::uint32_t>(*words_.as<std::uint32_t>()).load() == 0) {
      ASSERT_LT(steady_clock::now(), end);
    }
  }

  DeviceStream stream_{gpu_};
  PinnedBuffer words_{gpu_, 4096};
  DeviceBuffer flag_ = zeros(8);
  DeviceBuffer state_ = zeros(sizeof(AbortState));
  DeviceBuffer counter_ = zeros(4);
  std::optional<DeviceGraph> graph_;
};

TEST_F(AbortConcurrentTest, TheHostsWordEndsAGraphsWaitAndTheRestDoesNothing) {
  capture(kBoundNs);
  ASSERT_OK(graph_->launch(stream_.handle()));
  wait_until_it_spins();
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_FALSE(*stream_.is_idle());
  const auto raised = steady_clock::now();
  std::atomic_ref<std::uint32_t>(*abort_word()).store(1);
  ASSERT_OK(stream_.synchronize());
  std::printf("abort word to idle stream: %.1f us\n",
              std::chrono::duration<double, std::micro>(steady_clock::now() - raised).count());
  const auto state = on_host<AbortState>(state_);
  EXPECT_EQ(state.aborted, 1U);
  EXPECT_EQ(state.reason, AbortReason::kHostAsked);
  EXPECT_GE(state.waited_ns, 19'000'000U);
  EXPECT_EQ(on_host<std::uint32_t>(counter_), 0U);

  // Sticky: what is still enqueued ends at once, though the host has taken its word back.
  std::atomic_ref<std::uint32_t>(*abort_word()).store(0);
  ASSERT_OK(graph_->launch(stream_.handle()));
  ASSERT_OK(stream_.synchronize());
  EXPECT_EQ(on_host<std::uint32_t>(counter_), 0U);
  EXPECT_EQ(on_host<AbortState>(state_).waited_ns, state.waited_ns) << "written once";
}

TEST_F(AbortConcurrentTest, TheDevicesClockEndsAWaitByItself) {
  capture(30'000'000);
  ASSERT_OK(graph_->launch(stream_.handle()));
  ASSERT_OK(stream_.synchronize());
  const auto state = on_host<AbortState>(state_);
  EXPECT_EQ(state.aborted, 1U);
  EXPECT_EQ(state.reason, AbortReason::kTimedOut);
  EXPECT_GE(state.waited_ns, 30'000'000U);
  EXPECT_EQ(on_host<std::uint32_t>(counter_), 0U);
}

TEST_F(AbortConcurrentTest, WithItsFlagPostedTheGraphRunsThrough) {
  capture(kBoundNs);
  const PinnedBuffer payload(gpu_, 4);
  ASSERT_OK(testing::launch_post({payload.as<std::uint32_t>(), 1, 3, flag_.as<std::uint64_t>(), 1},
                                 stream_.handle()));
  ASSERT_OK(graph_->launch(stream_.handle()));
  ASSERT_OK(graph_->launch(stream_.handle()));
  ASSERT_OK(stream_.synchronize());
  EXPECT_EQ(on_host<std::uint32_t>(counter_), 2U);
  EXPECT_EQ(on_host<AbortState>(state_).aborted, 0U);
}

TEST_F(AbortConcurrentTest, AFailedCaptureLeavesTheStreamUsable) {
  const auto graph = DeviceGraph::capture(
      stream_, [] { return Status(StatusCode::kInvalidArgument, "not this shape"); });
  EXPECT_EQ(graph.status().message(), "not this shape");
  const auto synchronising = DeviceGraph::capture(stream_, [&] { return stream_.synchronize(); });
  EXPECT_EQ(synchronising.status().code(), StatusCode::kInternal);
  ASSERT_OK(testing::launch_count({state_.as<AbortState>(), counter_.as<std::uint32_t>()},
                                  stream_.handle()));
  ASSERT_OK(stream_.synchronize());
  EXPECT_EQ(on_host<std::uint32_t>(counter_), 1U);
}

TEST_F(DeviceCudaTest, ConcurrentStreamsWaitForEachOther) {
  const auto flags = zeros(256);
  const auto state = zeros(sizeof(AbortState));
  const PinnedBuffer words(gpu_, 4096);
  const DeviceStream streams[2] = {DeviceStream(gpu_), DeviceStream(gpu_)};
  std::uint64_t* to = flags.as<std::uint64_t>();
  std::uint64_t* elapsed = words.as<std::uint64_t>() + 64;
  const testing::WaitLimits limits{words.as<std::uint32_t>(), state.as<AbortState>(), kBoundNs};
  constexpr std::uint32_t kRounds = 10'000;
  ASSERT_OK(testing::launch_ping_pong({to + 16, to, 1, kRounds, true, limits, elapsed + 1},
                                      streams[1].handle()));
  ASSERT_OK(testing::launch_ping_pong({to, to + 16, 1, kRounds, false, limits, elapsed},
                                      streams[0].handle()));
  ASSERT_OK(streams[0].synchronize());
  ASSERT_OK(streams[1].synchronize());
  ASSERT_NE(elapsed[0], 0U) << "gave up";
  std::printf("flag round trip between two streams: %.0f ns\n",
              static_cast<double>(elapsed[0]) / kRounds);
}

TEST_F(DeviceCudaTest, MoreStreamsThanHardwareQueuesAreRefused) {
  std::vector<DeviceStream> streams;
  for (int i = 0; i < 32; ++i) {
    streams.emplace_back(gpu_);
  }
  EXPECT_TRUE(check_queues());
  streams.emplace_back(gpu_);
  const auto status = check_queues();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("33 streams"), HasSubstr("32 hardware queues"),
                                      HasSubstr("fastfd launch")));
  streams.pop_back();
  EXPECT_TRUE(check_queues());
}

}  // namespace
}  // namespace fastfd::device

int main(int argc, char** argv) {
  fastfd::device::set_cuda_environment();
  if (const auto status = fastfd::testing::run_as_peer(argc, argv)) {
    return *status;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
