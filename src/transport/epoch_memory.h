#pragma once

/// What two servers give each other in one epoch: memory, as descriptors that a socket carries.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fastfd/core/ids.h"
#include "fastfd/core/status.h"
#include "fastfd/transport/endpoint.h"
#include "transport/deadline.h"
#include "transport/handshake.h"
#include "transport/memory.h"

namespace fastfd::transport {

/// Memory as this process has mapped it.
struct Block {
  std::byte* data = nullptr;
  std::shared_ptr<const void> mapping;  ///< the last copy's end unmaps
};

/// Memory that this process made, with the descriptor by which others map it.
struct OwnBlock {
  Block block;
  UniqueFd fd;
};

/// A kind of memory that processes can share.
class BlockMaker {
 public:
  virtual ~BlockMaker() = default;
  /// Zero-filled. `name` is for people. kResourceExhausted, or what else the kernel or driver says.
  virtual Result<OwnBlock> make(const std::string& name, std::size_t num_bytes) const = 0;
  /// Maps what a peer's maker made. kInvalidArgument if the descriptor is of something else;
  /// kUnavailable if the memory can't be reached from here, now or later.
  virtual Result<Block> map_peer(const UniqueFd& fd, std::size_t num_bytes) const = 0;
};

/// Sealed memfds.
class SharedMemoryMaker final : public BlockMaker {
 public:
  Result<OwnBlock> make(const std::string& name, std::size_t num_bytes) const override;
  Result<Block> map_peer(const UniqueFd& fd, std::size_t num_bytes) const override;
};

/// One thing that each of two servers gives the other.
struct Piece {
  const char* name = "";
  std::size_t own_bytes = 0;   ///< of what this server makes
  std::size_t peer_bytes = 0;  ///< of what it gets
  bool is_common = false;      ///< the same memory for every peer, not one each
};

/// The receive window of a pair: a combine window on an attention server, a dispatch window on an
/// FFN server.
Piece window_piece(const LocalServer& self);

/// What is exchanged with every peer, in this order, and of which memory.
struct Exchange {
  const BlockMaker& maker;
  std::vector<Piece> pieces;
};

/// Everything one server maps in one epoch. The exchange that it was made for must outlive
/// map_peer calls only.
class EpochMemory {
 public:
  /// Makes all own memory. kAborted once the deadline is cancelled.
  static Result<EpochMemory> make(const LocalServer& self, Epoch epoch,
                                  std::span<const PeerAddress> peers, const Exchange& exchange,
                                  const Deadline& deadline);

  /// What a hello to this peer brings; open until close_descriptors.
  std::vector<int> descriptors_for(ServerRank peer) const;
  /// Maps what a peer's hello brought. kUnavailable names both servers' places.
  Status map_peer(const LocalServer& self, const ReceivedMessage& hello);
  /// The mappings stay.
  void close_descriptors();

  /// Highest peer's rank + 1.
  std::size_t num_ranks() const { return pairs_.size(); }
  /// Null where no such peer is in the epoch.
  std::byte* own(ServerRank peer, std::size_t piece) const;
  std::byte* peers(ServerRank peer, std::size_t piece) const;

 private:
  struct Pair {
    std::vector<std::shared_ptr<OwnBlock>> own;  ///< [pieces], or empty
    std::vector<Block> peers;                    ///< [pieces], or empty
  };
  const Exchange* exchange_ = nullptr;
  std::vector<Pair> pairs_;  ///< [peer rank]
};

}  // namespace fastfd::transport
