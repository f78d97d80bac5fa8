#pragma once

#include <cstdint>

namespace fastfd {

using TokenId = std::int32_t;      ///< index into the vocabulary; -1 is "none"
using RequestId = std::uint64_t;   ///< one HTTP choice, unique for the life of a coordinator
using SlotId = std::uint32_t;      ///< row of an attention server's sequence table
using Generation = std::uint32_t;  ///< how often a slot has been given out; guards late results
using PageId = std::uint32_t;      ///< KV page of one attention server
using StepId = std::uint64_t;      ///< steps of a coordinator's life, from 1, never reused
using Epoch = std::uint32_t;       ///< version of the membership, from 1
using LaneId = std::uint32_t;      ///< 0 .. kMaxLanes - 1
using ServerRank = std::uint32_t;  ///< rank within its role: attention server 0 .. M - 1
using ServerMask = std::uint64_t;  ///< bit r is attention server r

inline constexpr std::uint32_t kMaxLanes = 4;
inline constexpr std::uint32_t kMaxServers = 64;  ///< of one role: what a ServerMask holds
inline constexpr TokenId kNoToken = -1;

/// The three roles a server process can have.
enum class Role : std::uint8_t { kCoordinator, kAttention, kFfn };

/// "coordinator", "attention", "ffn"
const char* to_string(Role role);

}  // namespace fastfd
