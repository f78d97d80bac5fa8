#pragma once

/// What the coordinator publishes for one step, and what comes back (PROTOCOL: commit, ledger).
/// Plain values: the scheduler makes them with no device and no network, `control_plane` carries
/// them over gRPC, tests hand them over directly.
///
/// Plans are delta-coded. Each attention server keeps, for every lane, the list of its decode rows
/// (slots that compute one token a step); a plan names only what changes. The changes of (step,
/// lane) are applied when that lane starts that step, never earlier.
///
/// Order. A server starts its (step, lane) pairs in ascending order of (step, lane), and at every
/// layer their attention runs in that order too: a piece in lane 1 reads what lane 0 wrote in the
/// same step, and lane 0 of the next step reads what both wrote. Within one (step, lane) the
/// changes apply in this order: `rows` or `leaves`, then `opens`, then `pages` and the pieces'
/// `new_pages`.
///
/// Life of a slot. It is opened in the lane of its first piece; its pieces may run in several
/// lanes, ascending within a step; the piece that `samples` makes it a decode row of its lane. From
/// the next step on it feeds its last sampled token in *every* step, one position further each
/// time, until it is in `leaves` (or absent from `rows`). The step that names the leave does not
/// run the row any more. A slot dropped in the middle of its prompt just is not named again. Either
/// way it is opened again, with a higher generation, only in a step after the one that names its
/// leave, and after every step that runs it has been reported. Its pages go to other slots after
/// the same reports, in the step that names the leave at the earliest.

#include <cstdint>
#include <optional>
#include <vector>

#include "fastfd/core/ids.h"
#include "fastfd/core/request.h"

namespace fastfd {

/// The partial last page of a prompt that several choices share: each needs its own to go on in.
struct PageCopy {
  PageId source = 0;
  PageId target = 0;
  std::uint32_t num_tokens = 0;  ///< 1 .. page_size - 1, from the page's start
  friend bool operator==(const PageCopy&, const PageCopy&) = default;
};

/// Starts a sequence (again): forgets whatever the slot held.
struct SlotOpen {
  SlotId slot = 0;
  Generation generation = 0;
  std::uint32_t prompt_len = 0;  ///< tokens of the client's prompt
  /// Full pages that already hold the start: a prefix-cache hit, or the pages of another choice.
  std::vector<PageId> cached_pages;
  /// Distinct tokens of the client's prompt, ascending; only with a repetition penalty.
  std::vector<TokenId> prompt_tokens{};
  std::vector<TokenId> output_tokens;  ///< emitted before a preemption; only if penalties need them
  SamplingParams sampling;
  /// Copied in all layers before the lane's first layer; the target follows cached_pages.
  std::optional<PageCopy> copy_page;
  friend bool operator==(const SlotOpen&, const SlotOpen&) = default;
};

/// A contiguous part of a prompt that one lane runs in one step.
struct PrefillPiece {
  SlotId slot = 0;
  Generation generation = 0;
  std::uint32_t start_position = 0;
  std::vector<TokenId> tokens;
  std::vector<PageId> new_pages;  ///< appended to the slot's page table before the piece runs
  /// The prompt ends here: its last row is sampled, and from the next step on the slot is a decode
  /// row of this lane.
  bool samples = false;
  friend bool operator==(const PrefillPiece&, const PrefillPiece&) = default;
};

/// Page that a decode row needs for the token of this step.
struct PageAppend {
  SlotId slot = 0;
  PageId page = 0;
  friend bool operator==(const PageAppend&, const PageAppend&) = default;
};

/// Entry of a complete row list: after a lane barrier, or in the first plan of an epoch.
struct DecodeRow {
  SlotId slot = 0;
  Generation generation = 0;
  std::uint32_t position = 0;  ///< of the token that this step feeds
  /// Last committed token; kNoToken: the server has it on the device (lane barrier).
  TokenId last_token = kNoToken;
  friend bool operator==(const DecodeRow&, const DecodeRow&) = default;
};

/// One lane of one step on one attention server.
struct AttentionLanePlan {
  LaneId lane = 0;
  ServerMask participants = 0;  ///< attention servers with rows in this (step, lane)
  /// Rows of this server after the changes: decode rows + piece tokens. 0: the entry only brings
  /// leaves (or an emptied row list at a barrier); it runs no layer, sends nothing, reports
  /// nothing, and its server is not in `participants`.
  std::uint32_t num_rows = 0;
  std::uint32_t row_bucket = 0;  ///< shape bucket both pools use (rows rounded up)
  bool use_graph = false;        ///< replay a captured graph of that bucket; always false on CPU
  /// Replaces the lane's decode rows. At a barrier every lane that had or gets decode rows on this
  /// server has it set, empty where it has none any more, and nobody is in `leaves`.
  std::optional<std::vector<DecodeRow>> rows;
  std::vector<SlotId> leaves;     ///< decode rows of this lane that are not in this step any more
  std::vector<SlotOpen> opens;    ///< slots whose first piece is in `pieces` of this entry
  std::vector<PageAppend> pages;  ///< for decode rows of this lane only
  std::vector<PrefillPiece> pieces;
  friend bool operator==(const AttentionLanePlan&, const AttentionLanePlan&) = default;
};

/// A step as one attention server sees it. A server with no rows in a step gets no plan for it,
/// unless decode rows leave; steps in which nobody has rows are not planned, so leaves wait for the
/// next one that runs.
struct AttentionStepPlan {
  Epoch epoch = 0;
  StepId step = 0;
  std::uint32_t placement_version = 0;
  std::uint32_t num_lanes = 1;  ///< lanes the cluster uses; `lanes` holds those this server is in
  /// Row lists are replaced, or num_lanes differs from the step before: no lane of this server
  /// starts before all its lanes of earlier steps have finished. Rows keep their last token on the
  /// server. Lanes >= num_lanes may be listed here with num_rows 0, to be emptied.
  bool barrier = false;
  std::vector<AttentionLanePlan> lanes;  ///< ascending lane
  friend bool operator==(const AttentionStepPlan&, const AttentionStepPlan&) = default;
};

struct FfnLanePlan {
  LaneId lane = 0;
  ServerMask participants = 0;   ///< attention servers that send in every layer, rows or none
  std::uint32_t row_bucket = 0;  ///< sum over participants, rounded up
  bool use_graph = false;
  /// AttentionLanePlan::row_bucket of each participant, ascending rank: how long each one's
  /// messages are where both ends must know that before they meet (transport nccl).
  std::vector<std::uint32_t> participant_buckets{};
  friend bool operator==(const FfnLanePlan&, const FfnLanePlan&) = default;
};

/// A step as every FFN server sees it.
struct FfnStepPlan {
  Epoch epoch = 0;
  StepId step = 0;
  std::uint32_t placement_version = 0;
  std::uint32_t num_lanes = 1;
  std::vector<FfnLanePlan> lanes;  ///< ascending lane; lanes empty everywhere are absent
  friend bool operator==(const FfnStepPlan&, const FfnStepPlan&) = default;
};

struct StepPlan {
  StepId step = 0;
  Epoch epoch = 0;
  std::vector<std::pair<ServerRank, AttentionStepPlan>> attention;  ///< ascending rank
  FfnStepPlan ffn;
};

/// Token sampled for `slot` in a step. `position` is the sampled token's place in the sequence.
/// kNoToken: its logits are no numbers or leave none, which ends the sequence.
struct SampledToken {
  SlotId slot = 0;
  Generation generation = 0;
  std::uint32_t position = 0;
  TokenId token = kNoToken;
  float logprob = 0.0F;
  std::vector<TokenLogprob> top_logprobs;
  friend bool operator==(const SampledToken&, const SampledToken&) = default;
};

/// The unit of commit: one lane of one step on one attention server; one for every
/// AttentionLanePlan with rows. Those of one lane arrive in step order.
struct LaneResult {
  Epoch epoch = 0;
  StepId step = 0;
  ServerRank attention_rank = 0;
  LaneId lane = 0;
  /// One for every decode row and every piece that samples, in any order.
  std::vector<SampledToken> tokens;
  std::uint32_t num_rows = 0;
  float compute_us = 0.0F;  ///< this lane's work on the server, waiting excluded
  float wait_us = 0.0F;     ///< time the server stood still for this lane's combines
  /// Lane 0 only: it began this step before the last lane of the step before had finished.
  bool overlapped = false;
  friend bool operator==(const LaneResult&, const LaneResult&) = default;
};

/// Cumulative counters of an FFN server since it joined; differences give shares.
struct FfnLoad {
  ServerRank ffn_rank = 0;
  std::uint64_t layers_run = 0;  ///< (step, layer, lane) executions
  std::uint64_t rows_run = 0;    ///< token rows received, all layers
  double compute_us = 0.0;
  double wait_us = 0.0;  ///< waiting while at least one (step, lane) was planned
};

}  // namespace fastfd
