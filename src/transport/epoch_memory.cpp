#include "transport/epoch_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "transport/window_layouts.h"

namespace fastfd::transport {
namespace {

Status unreachable(const LocalServer& self, const HandshakeMessage& hello, const Status& cause) {
  return Status(cause.code(),
                fmt::format("{} has its windows on {}, which {} on {} can't reach: {}; give both "
                            "servers GPUs that are peers, or one GPU (attention.device, "
                            "ffn.device)",
                            server_name(hello.role, hello.rank), text_of(hello),
                            server_name(self.role, self.rank), self.place, cause.message()));
}

}  // namespace

Result<OwnBlock> SharedMemoryMaker::make(const std::string& name, std::size_t num_bytes) const {
  Result<SharedMemory> memory = SharedMemory::make(name, num_bytes);
  if (!memory) {
    return memory.status();
  }
  auto mapping = std::make_shared<Mapping>(std::move(memory->mapping));
  std::byte* data = mapping->data();
  return OwnBlock{{data, std::move(mapping)}, std::move(memory->fd)};
}

Result<Block> SharedMemoryMaker::map_peer(const UniqueFd& fd, std::size_t num_bytes) const {
  Result<Mapping> mapped = Mapping::map_peer(fd, num_bytes);
  if (!mapped) {
    return mapped.status();
  }
  auto mapping = std::make_shared<Mapping>(std::move(*mapped));
  std::byte* data = mapping->data();
  return Block{data, std::move(mapping)};
}

Piece window_piece(const LocalServer& self) {
  const std::size_t dispatch_bytes = dispatch_layout(self.shape).bytes();
  const std::size_t combine_bytes = combine_layout(self.shape).bytes();
  const bool is_ffn = self.role == Role::kFfn;
  return {.name = "window",
          .own_bytes = is_ffn ? dispatch_bytes : combine_bytes,
          .peer_bytes = is_ffn ? combine_bytes : dispatch_bytes,
          .is_common = false};
}

Result<EpochMemory> EpochMemory::make(const LocalServer& self, Epoch epoch,
                                      std::span<const PeerAddress> peers, const Exchange& exchange,
                                      const Deadline& deadline) {
  EpochMemory memory;
  memory.exchange_ = &exchange;
  ServerRank highest = 0;
  for (const PeerAddress& peer : peers) {
    highest = std::max(highest, peer.rank);
  }
  memory.pairs_.resize(highest + 1);
  for (const Piece& piece : exchange.pieces) {
    std::shared_ptr<OwnBlock> block;
    for (const PeerAddress& peer : peers) {
      if (deadline.is_cancelled()) {
        return Status(StatusCode::kAborted, "making windows was cancelled");
      }
      if (block == nullptr || !piece.is_common) {
        Result<OwnBlock> made = exchange.maker.make(
            fmt::format("fastfd-{}-{}-e{}-{}-{}", to_string(self.role), self.rank, epoch,
                        piece.name, piece.is_common ? "all" : std::to_string(peer.rank)),
            piece.own_bytes);
        if (!made) {
          return made.status();
        }
        block = std::make_shared<OwnBlock>(std::move(*made));
      }
      memory.pairs_[peer.rank].own.push_back(block);
    }
  }
  return memory;
}

std::vector<int> EpochMemory::descriptors_for(ServerRank peer) const {
  std::vector<int> fds;
  for (const auto& block : pairs_[peer].own) {
    fds.push_back(block->fd.get());
  }
  return fds;
}

Status EpochMemory::map_peer(const LocalServer& self, const ReceivedMessage& hello) {
  const auto& pieces = exchange_->pieces;
  if (hello.fds.size() != pieces.size()) {
    std::vector<const char*> names;
    names.reserve(pieces.size());
    for (const Piece& piece : pieces) {
      names.push_back(piece.name);
    }
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("peer sent {} descriptors where {} are expected ({}); raise the "
                              "limit of open files (ulimit -n)",
                              hello.fds.size(), pieces.size(), fmt::join(names, ", ")));
  }
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    Result<Block> block = exchange_->maker.map_peer(hello.fds[i], pieces[i].peer_bytes);
    if (!block) {
      return block.status().code() == StatusCode::kUnavailable
                 ? unreachable(self, hello.message, block.status())
                 : block.status();
    }
    blocks.push_back(*std::move(block));
  }
  pairs_[hello.message.rank].peers = std::move(blocks);
  return Status::ok();
}

void EpochMemory::close_descriptors() {
  for (Pair& pair : pairs_) {
    for (const auto& block : pair.own) {
      block->fd.reset();
    }
  }
}

std::byte* EpochMemory::own(ServerRank peer, std::size_t piece) const {
  const Pair& pair = pairs_[peer];
  return piece < pair.own.size() ? pair.own[piece]->block.data : nullptr;
}

std::byte* EpochMemory::peers(ServerRank peer, std::size_t piece) const {
  const Pair& pair = pairs_[peer];
  return piece < pair.peers.size() ? pair.peers[piece].data : nullptr;
}

}  // namespace fastfd::transport
