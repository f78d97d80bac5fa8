#include "support/fake_cluster.h"

#include <algorithm>
#include <set>

#include "fastfd/core/row_bucket.h"

namespace fastfd::testing {
namespace {

void expect(bool condition, const std::string& what) {
  if (!condition) {
    throw ProtocolViolation(what);
  }
}

std::uint64_t mix(std::uint64_t state, std::uint64_t value) {
  std::uint64_t z = (state ^ value) + 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

bool contains(const std::vector<TokenId>& tokens, TokenId token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

/// The "model": a function of all tokens read, the sampling parameters and the outputs that
/// penalties would count.
TokenId sample(std::uint64_t context_hash, std::uint32_t position, std::uint32_t prompt_len,
               const SamplingParams& sampling, const std::vector<TokenId>& outputs) {
  std::uint64_t hash = mix(mix(context_hash, sampling.seed), position);
  if (sampling.has_penalties()) {
    for (const TokenId token : outputs) {
      hash = mix(hash, static_cast<std::uint64_t>(token));
    }
  }
  auto token = static_cast<TokenId>(hash % FakeCluster::kVocabulary);
  while (position - prompt_len < sampling.min_tokens && contains(sampling.stop_token_ids, token)) {
    token = (token + 1) % FakeCluster::kVocabulary;
  }
  return token;
}

std::uint32_t num_tokens(const AttentionLanePlan& lane) {
  std::size_t count = 0;
  for (const PrefillPiece& piece : lane.pieces) {
    count += piece.tokens.size();
  }
  return static_cast<std::uint32_t>(count);
}

}  // namespace

FakeCluster::FakeCluster(const scheduler::SchedulerOptions& options, std::uint64_t seed)
    : options_(options), random_(seed), servers_(options.num_attention_servers) {
  begin_epoch(1);
}

ExpectedOutput FakeCluster::reference(const Request& request, std::uint32_t max_model_len) {
  ExpectedOutput expected;
  std::uint64_t hash = 0;
  for (const TokenId token : request.prompt) {
    hash = mix(hash, static_cast<std::uint64_t>(token));
  }
  const auto prompt_len = static_cast<std::uint32_t>(request.prompt.size());
  while (true) {
    const auto generated = static_cast<std::uint32_t>(expected.tokens.size());
    const TokenId token =
        sample(hash, prompt_len + generated, prompt_len, request.sampling, expected.tokens);
    expected.tokens.push_back(token);
    hash = mix(hash, static_cast<std::uint64_t>(token));
    if (!request.sampling.ignore_eos && generated >= request.sampling.min_tokens &&
        contains(request.sampling.stop_token_ids, token)) {
      expected.finish = FinishReason::kStop;
      return expected;
    }
    if (generated + 1 == request.max_tokens || prompt_len + generated + 1 == max_model_len) {
      expected.finish = FinishReason::kLength;
      return expected;
    }
  }
}

std::vector<LaneResult> FakeCluster::begin_epoch(Epoch epoch) {
  epoch_ = epoch;
  std::vector<LaneResult> undelivered;
  for (Server& server : servers_) {
    for (auto& lane : server.outgoing) {
      for (Outgoing& outgoing : lane) {
        undelivered.push_back(std::move(outgoing.result));
      }
    }
    server = Server();
    server.pages.resize(options_.pages_per_server);
    server.slots.resize(scheduler::Scheduler::slots_per_server(options_));
  }
  return undelivered;
}

std::uint32_t FakeCluster::num_uncommitted_steps() const {
  std::set<StepId> steps;
  for (const Server& server : servers_) {
    for (const Work& work : server.queue) {
      if (work.plan.num_rows > 0) {
        steps.insert(work.step);
      }
    }
    for (const auto& lane : server.outgoing) {
      for (const Outgoing& outgoing : lane) {
        steps.insert(outgoing.result.step);
      }
    }
  }
  return static_cast<std::uint32_t>(steps.size());
}

// ---- Publishing: the plan against the rules ----

void FakeCluster::publish(const StepPlan& plan) {
  expect(plan.epoch == epoch_ && plan.ffn.epoch == epoch_, "plan of another epoch");
  expect(plan.step > last_step_ && plan.ffn.step == plan.step, "step ids must grow");
  last_step_ = plan.step;
  expect(num_uncommitted_steps() <= (options_.overlapped ? options_.plan_ahead : 0),
         "more steps in flight than the credit allows");
  check_participants(plan);
  std::size_t next = 0;
  for (ServerRank rank = 0; rank < servers_.size(); ++rank) {
    if (next < plan.attention.size() && plan.attention[next].first == rank) {
      publish_server(servers_[rank], plan.attention[next].second);
      ++next;
    } else {
      publish_absent(servers_[rank]);
    }
  }
  expect(next == plan.attention.size(), "attention plans must have ascending ranks");
}

void FakeCluster::check_participants(const StepPlan& plan) const {
  std::array<ServerMask, kMaxLanes> with_rows{};
  std::array<std::uint32_t, kMaxLanes> rows{};
  std::array<bool, kMaxLanes> pieces{};
  std::array<std::uint32_t, kMaxLanes> largest{};  // bucket
  std::array<std::vector<std::uint32_t>, kMaxLanes> buckets;
  for (const auto& [rank, server] : plan.attention) {
    expect(server.epoch == plan.epoch && server.step == plan.step, "server plan of another step");
    expect(server.num_lanes == plan.ffn.num_lanes, "servers disagree on the number of lanes");
    for (const AttentionLanePlan& lane : server.lanes) {
      if (lane.num_rows > 0) {
        expect(lane.lane < server.num_lanes, "rows in a lane that does not exist");
        expect(lane.row_bucket >= lane.num_rows, "bucket smaller than its rows");
        with_rows[lane.lane] |= ServerMask{1} << rank;
        rows[lane.lane] += lane.num_rows;
        buckets[lane.lane].push_back(lane.row_bucket);
        pieces[lane.lane] = pieces[lane.lane] || !lane.pieces.empty();
        largest[lane.lane] = std::max(largest[lane.lane], row_bucket(lane.num_rows));
      }
    }
  }
  std::size_t next = 0;
  for (LaneId b = 0; b < kMaxLanes; ++b) {
    if (with_rows[b] == 0) {
      continue;
    }
    expect(next < plan.ffn.lanes.size() && plan.ffn.lanes[next].lane == b &&
               plan.ffn.lanes[next].participants == with_rows[b] &&
               plan.ffn.lanes[next].row_bucket >= rows[b],
           "the FFN plan does not list the lane's participants");
    expect(plan.ffn.lanes[next].participant_buckets == buckets[b],
           "the FFN plan has other buckets than its participants");
    expect(plan.ffn.lanes[next].use_graph == (options_.use_graphs && !pieces[b]),
           "graphs serve lanes of decode rows alone, and these always");
    ++next;
  }
  expect(next == plan.ffn.lanes.size(), "the FFN plan lists a lane that is empty everywhere");
  expect(next > 0, "a step in which nobody has rows");
  for (const auto& [rank, server] : plan.attention) {
    for (const AttentionLanePlan& lane : server.lanes) {
      expect(lane.participants == with_rows[lane.lane], "participants differ between servers");
      expect(lane.use_graph == (lane.num_rows > 0 && options_.use_graphs && !pieces[lane.lane]),
             "the pools disagree on graph or eager");
      expect(
          !options_.uniform_buckets || lane.num_rows == 0 || lane.row_bucket == largest[lane.lane],
          "a participant's bucket is not that of the largest");
    }
  }
}

void FakeCluster::publish_absent(const Server& server) const {
  for (const auto& lane : server.rows) {
    expect(lane.empty(), "a server with decode rows is not in the step");
  }
  for (const auto& [slot, incarnation] : server.incarnations) {
    expect(!incarnation->becomes_row, "a finished prompt's row is not in the step");
  }
}

void FakeCluster::publish_server(Server& server, const AttentionStepPlan& plan) {
  for (auto& [slot, incarnation] : server.incarnations) {
    if (incarnation->becomes_row) {
      incarnation->becomes_row = false;
      incarnation->is_row = true;
      server.rows[incarnation->lane].push_back(incarnation);
    }
  }
  expect(server.num_lanes == 0 || server.num_lanes == plan.num_lanes || plan.barrier ||
             std::all_of(server.rows.begin(), server.rows.end(),
                         [](const auto& rows) { return rows.empty(); }),
         "the number of lanes changes without a barrier");
  server.num_lanes = plan.num_lanes;
  if (plan.barrier) {
    publish_rows(server, plan);
  }
  std::set<LaneId> listed;
  std::uint32_t total_rows = 0;
  for (const AttentionLanePlan& lane : plan.lanes) {
    expect(lane.lane < kMaxLanes && (listed.empty() || *listed.rbegin() < lane.lane),
           "lanes must ascend");
    listed.insert(lane.lane);
    total_rows += lane.num_rows;
  }
  expect(total_rows <= options_.max_batched_tokens, "more rows than max_batched_tokens");
  for (const AttentionLanePlan& lane : plan.lanes) {
    publish_leaves(server, lane, plan.step);
  }
  for (const AttentionLanePlan& lane : plan.lanes) {
    Work work{plan.step, plan.epoch, plan.barrier, lane, {}};
    publish_lane(server, plan, lane, work);
    server.queue.push_back(std::move(work));
  }
  for (LaneId b = 0; b < kMaxLanes; ++b) {
    expect(server.rows[b].empty() || listed.count(b) == 1, "a lane with decode rows is missing");
  }
}

/// A barrier: the row lists must hold sequences that were rows before, each once, where they are.
void FakeCluster::publish_rows(Server& server, const AttentionStepPlan& plan) {
  std::array<bool, kMaxLanes> replaced{};
  std::array<std::vector<IncarnationRef>, kMaxLanes> rows;
  std::set<SlotId> seen;
  for (const AttentionLanePlan& lane : plan.lanes) {
    expect(lane.leaves.empty(), "leaves beside complete row lists");
    if (!lane.rows) {
      continue;
    }
    replaced[lane.lane] = true;
    for (const DecodeRow& row : *lane.rows) {
      Incarnation& incarnation = find(server, row.slot, row.generation);
      expect(incarnation.is_row, "a barrier lists a slot that is no decode row");
      expect(incarnation.next_position == row.position, "a barrier lists a wrong position");
      expect(seen.insert(row.slot).second, "a slot is in two row lists");
      rows[lane.lane].push_back(server.incarnations[row.slot]);
    }
  }
  for (LaneId b = 0; b < kMaxLanes; ++b) {
    expect(replaced[b] || server.rows[b].empty(), "a barrier does not replace a lane's rows");
    for (const IncarnationRef& row : server.rows[b]) {
      if (seen.count(row->slot) == 0) {
        row->is_row = false;
        row->left_in = plan.step;
      }
    }
  }
  server.rows = std::move(rows);
  for (LaneId b = 0; b < kMaxLanes; ++b) {
    for (const IncarnationRef& row : server.rows[b]) {
      row->lane = b;
    }
  }
}

void FakeCluster::publish_leaves(Server& server, const AttentionLanePlan& lane, StepId step) {
  auto& rows = server.rows[lane.lane];
  for (const SlotId slot : lane.leaves) {
    const auto at = std::find_if(rows.begin(), rows.end(),
                                 [slot](const IncarnationRef& row) { return row->slot == slot; });
    expect(at != rows.end(), "a slot leaves a lane in which it is no row");
    (*at)->is_row = false;
    (*at)->left_in = step;
    rows.erase(at);
  }
}

void FakeCluster::publish_open(Server& server, const SlotOpen& open, StepId step, LaneId lane) {
  expect(open.slot < server.slots.size(), "slot out of range");
  IncarnationRef& current = server.incarnations[open.slot];
  if (current != nullptr) {
    expect(open.generation > current->generation, "a slot's generation must grow");
    expect(!current->is_row && !current->becomes_row, "a decode row's slot is opened");
    expect(current->left_in < step, "a slot is opened in the step that names its leave");
    expect(current->undelivered == 0, "a slot is opened before its last step has committed");
  }
  current = std::make_shared<Incarnation>();
  current->slot = open.slot;
  current->generation = open.generation;
  for (const PageId page_id : open.cached_pages) {
    expect(page_id < server.pages.size(), "page out of range");
    Page& page = server.pages[page_id];
    expect(page.cells.size() == options_.page_size, "a cached page that was never assigned");
    for (const Cell& cell : page.cells) {
      expect(cell.written && server.delivered_step[cell.lane] >= cell.step,
             "a cached block was published before its step committed");
    }
    page.read_only = true;
    page.holders.push_back(current);
    current->pages.push_back(page_id);
  }
  current->next_position =
      static_cast<std::uint32_t>(open.cached_pages.size()) * options_.page_size;
  if (open.copy_page) {
    publish_copy(server, *open.copy_page, current, step, lane);
  }
}

/// The source may go on being written behind what is copied; it must not be given away before the
/// step that copies has committed.
void FakeCluster::publish_copy(Server& server, const PageCopy& copy, const IncarnationRef& to,
                               StepId step, LaneId lane) {
  expect(copy.source < server.pages.size() && copy.num_tokens > 0 &&
             copy.num_tokens < options_.page_size,
         "a copy of no part of a page");
  Page& source = server.pages[copy.source];
  expect(source.cells.size() == options_.page_size, "a copied page that was never assigned");
  for (std::uint32_t i = 0; i < copy.num_tokens; ++i) {
    const Cell& cell = source.cells[i];
    expect(cell.written && server.delivered_step[cell.lane] >= cell.step,
           "a page is copied before the step that wrote it committed");
  }
  source.copied_in = step;
  source.copied_by = lane;
  assign_page(server, copy.target, to);
  to->next_position += copy.num_tokens;
}

void FakeCluster::assign_page(Server& server, PageId page_id, const IncarnationRef& to) {
  expect(page_id < server.pages.size(), "page out of range");
  Page& page = server.pages[page_id];
  for (const IncarnationRef& holder : page.holders) {
    expect(holder != to, "a page is given twice to one sequence");
    expect(holder->undelivered == 0 && !holder->is_row && !holder->becomes_row,
           "a page is given out while a step in flight names it");
    holder->lost_page = true;
  }
  expect(page.copied_in == 0 || server.delivered_step[page.copied_by] >= page.copied_in,
         "a page is given out while a step in flight copies it");
  page.copied_in = 0;
  page.holders = {to};
  page.writer = to;
  page.read_only = false;
  page.cells.assign(options_.page_size, Cell{});
  to->pages.push_back(page_id);
}

FakeCluster::Incarnation& FakeCluster::find(Server& server, SlotId slot, Generation generation) {
  const auto at = server.incarnations.find(slot);
  expect(at != server.incarnations.end() && at->second->generation == generation,
         "a plan names a generation that the slot does not have");
  return *at->second;
}

void FakeCluster::name(const IncarnationRef& incarnation, Work& work, LaneId lane) {
  expect(!incarnation->lost_page, "a sequence is named after one of its pages was given away");
  ++incarnation->undelivered;
  incarnation->last_step = work.step;
  incarnation->last_lane = lane;
  work.named.push_back(incarnation);
}

void FakeCluster::publish_lane(Server& server, const AttentionStepPlan& plan,
                               const AttentionLanePlan& lane, Work& work) {
  expect(plan.barrier || !lane.rows, "row lists without a barrier");
  for (const SlotOpen& open : lane.opens) {
    publish_open(server, open, plan.step, lane.lane);
    expect(std::any_of(lane.pieces.begin(), lane.pieces.end(),
                       [&open](const PrefillPiece& piece) { return piece.slot == open.slot; }),
           "a slot is opened in a lane that has no piece of it");
  }
  auto& rows = server.rows[lane.lane];
  for (const PageAppend& append : lane.pages) {
    const auto at = std::find_if(rows.begin(), rows.end(), [&append](const IncarnationRef& row) {
      return row->slot == append.slot;
    });
    expect(at != rows.end(), "a page for a slot that is no decode row of the lane");
    assign_page(server, append.page, *at);
  }
  for (const IncarnationRef& row : rows) {
    name(row, work, lane.lane);
    expect(row->next_position < row->pages.size() * options_.page_size,
           "a decode row has no page for its token");
    ++row->next_position;
  }
  for (const PrefillPiece& piece : lane.pieces) {
    publish_piece(server, lane, piece, work, plan.step);
  }
  expect(lane.num_rows == rows.size() + num_tokens(lane), "num_rows is not what the lane runs");
}

void FakeCluster::publish_piece(Server& server, const AttentionLanePlan& lane,
                                const PrefillPiece& piece, Work& work, StepId step) {
  Incarnation& incarnation = find(server, piece.slot, piece.generation);
  expect(!incarnation.is_row && !incarnation.becomes_row, "a piece for a decode row");
  expect(!piece.tokens.empty(), "a piece without tokens");
  expect(piece.start_position == incarnation.next_position,
         "a piece does not go on where the last one ended");
  expect(incarnation.last_step < step || incarnation.last_lane < lane.lane,
         "pieces of a step must ascend with the lanes");
  const IncarnationRef self = server.incarnations[piece.slot];
  for (const PageId page : piece.new_pages) {
    assign_page(server, page, self);
  }
  name(self, work, lane.lane);
  incarnation.next_position += static_cast<std::uint32_t>(piece.tokens.size());
  expect(incarnation.next_position <= incarnation.pages.size() * options_.page_size,
         "a piece has no page for its tokens");
  if (piece.samples) {
    incarnation.becomes_row = true;
    incarnation.lane = lane.lane;
  }
}

// ---- Execution: what a server does with it ----

bool FakeCluster::run_one() {
  std::vector<ServerRank> ready;
  for (ServerRank rank = 0; rank < servers_.size(); ++rank) {
    if (!servers_[rank].queue.empty()) {
      ready.push_back(rank);
    }
  }
  return !ready.empty() && run_one(ready[random_() % ready.size()]);
}

bool FakeCluster::run_one(ServerRank rank) {
  Server& server = servers_[rank];
  if (server.queue.empty()) {
    return false;
  }
  Work work = std::move(server.queue.front());
  server.queue.pop_front();
  Outgoing outgoing;
  LaneResult& result = outgoing.result;
  result.epoch = work.epoch;
  result.step = work.step;
  result.attention_rank = rank;
  result.lane = work.plan.lane;
  result.num_rows = work.plan.num_rows;
  result.compute_us = 20.0F + static_cast<float>(work.plan.num_rows);
  result.wait_us = static_cast<float>(random_() % 10);
  execute(server, rank, work, result);
  if (work.plan.num_rows > 0) {
    outgoing.named = std::move(work.named);
    server.outgoing[work.plan.lane].push_back(std::move(outgoing));
  }
  return true;
}

void FakeCluster::execute(Server& server, ServerRank rank, const Work& work, LaneResult& result) {
  const AttentionLanePlan& plan = work.plan;
  auto& rows = server.executed_rows[plan.lane];
  const auto id = [&](SlotId slot) {
    return " (server " + std::to_string(rank) + ", step " + std::to_string(work.step) + ", slot " +
           std::to_string(slot) + ")";
  };
  if (plan.rows) {
    rows.clear();
    for (const DecodeRow& row : *plan.rows) {
      expect(server.slots[row.slot].generation == row.generation &&
                 server.slots[row.slot].next_position == row.position,
             "a row list does not match what the server holds" + id(row.slot));
      rows.push_back(row.slot);
    }
  }
  for (const SlotId slot : plan.leaves) {
    expect(std::erase(rows, slot) == 1, "a slot leaves that is no row" + id(slot));
  }
  for (const SlotOpen& open : plan.opens) {
    Slot& slot = server.slots[open.slot];
    slot = {true,          open.generation,    open.prompt_len,
            open.sampling, open.cached_pages,  0,
            kNoToken,      open.output_tokens, 0};
    slot.next_position = static_cast<std::uint32_t>(open.cached_pages.size()) * options_.page_size;
    if (open.copy_page) {
      const PageCopy& copy = *open.copy_page;
      const auto& source = server.pages[copy.source].cells;
      auto& target = server.pages[copy.target].cells;
      for (std::uint32_t i = 0; i < copy.num_tokens; ++i) {
        target[i] = {source[i].written, source[i].token, work.step, plan.lane};
      }
      slot.pages.push_back(copy.target);
      slot.next_position += copy.num_tokens;
    }
  }
  for (const PageAppend& append : plan.pages) {
    server.slots[append.slot].pages.push_back(append.page);
  }
  for (const SlotId slot : rows) {
    result.tokens.push_back(
        feed(server, slot, server.slots[slot].last_token, work.step, plan.lane, true));
  }
  for (const PrefillPiece& piece : plan.pieces) {
    Slot& slot = server.slots[piece.slot];
    expect(slot.generation == piece.generation && slot.next_position == piece.start_position,
           "a piece does not match what the server holds" + id(piece.slot));
    slot.pages.insert(slot.pages.end(), piece.new_pages.begin(), piece.new_pages.end());
    for (std::size_t i = 0; i < piece.tokens.size(); ++i) {
      const bool last = piece.samples && i + 1 == piece.tokens.size();
      const SampledToken sampled =
          feed(server, piece.slot, piece.tokens[i], work.step, plan.lane, last);
      if (last) {
        result.tokens.push_back(sampled);
      }
    }
    if (piece.samples) {
      rows.push_back(piece.slot);
    }
  }
}

/// One row: writes its token into the KV page, reads everything before it, samples.
SampledToken FakeCluster::feed(Server& server, SlotId slot_id, TokenId token, StepId step,
                               LaneId lane, bool sample_token) {
  Slot& slot = server.slots[slot_id];
  const std::uint32_t position = slot.next_position++;
  expect(slot.open && token != kNoToken, "a row without a token to feed");
  expect(position / options_.page_size < slot.pages.size(), "a row without a page");
  Page& target = server.pages[slot.pages[position / options_.page_size]];
  expect(!target.read_only, "a shared page is written");
  expect(target.writer != nullptr && target.writer->slot == slot_id &&
             target.writer->generation == slot.generation,
         "a page is written by a sequence that does not own it");
  target.cells[position % options_.page_size] = {true, token, step, lane};
  slot.recurrent_state = mix(slot.recurrent_state, static_cast<std::uint64_t>(token));
  SampledToken sampled{slot_id, slot.generation, position + 1, kNoToken, 0.0F, {}};
  if (!sample_token) {
    return sampled;
  }
  std::uint64_t hash = 0;
  for (std::uint32_t i = 0; i <= position; ++i) {
    const Cell& cell =
        server.pages[slot.pages[i / options_.page_size]].cells[i % options_.page_size];
    expect(cell.written, "a position is read that nobody wrote");
    hash = mix(hash, static_cast<std::uint64_t>(cell.token));
  }
  if (options_.recurrent_state) {
    hash = slot.recurrent_state;
  }
  sampled.token = sample(hash, position + 1, slot.prompt_len, slot.sampling, slot.outputs);
  sampled.logprob = -static_cast<float>(sampled.token);
  slot.last_token = sampled.token;
  if (slot.sampling.has_penalties()) {
    slot.outputs.push_back(sampled.token);
  }
  return sampled;
}

std::optional<LaneResult> FakeCluster::deliver_one() {
  std::vector<std::pair<ServerRank, LaneId>> ready;
  for (ServerRank rank = 0; rank < servers_.size(); ++rank) {
    for (LaneId b = 0; b < kMaxLanes; ++b) {
      if (!servers_[rank].outgoing[b].empty()) {
        ready.emplace_back(rank, b);
      }
    }
  }
  if (ready.empty()) {
    return std::nullopt;
  }
  const auto [rank, lane] = ready[random_() % ready.size()];
  return deliver(rank, lane);
}

std::optional<LaneResult> FakeCluster::deliver(ServerRank rank, LaneId lane) {
  Server& server = servers_[rank];
  if (server.outgoing[lane].empty()) {
    return std::nullopt;
  }
  Outgoing outgoing = std::move(server.outgoing[lane].front());
  server.outgoing[lane].pop_front();
  for (const IncarnationRef& incarnation : outgoing.named) {
    --incarnation->undelivered;
  }
  server.delivered_step[lane] = outgoing.result.step;
  return std::move(outgoing.result);
}

}  // namespace fastfd::testing
