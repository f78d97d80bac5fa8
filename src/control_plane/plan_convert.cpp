#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

#include "control_plane/convert.h"

namespace fastfd::control_plane {
namespace {

/// Room for `count` entries in a packed field, to be written by index.
template <typename Field>
auto* resized(Field* field, std::size_t count) {
  field->Resize(static_cast<int>(count), 0);
  return field->mutable_data();
}

template <typename Field, typename T>
void assign(Field* field, const std::vector<T>& values) {
  std::copy(values.begin(), values.end(), resized(field, values.size()));
}

template <typename T, typename Field>
std::vector<T> to_vector(const Field& field) {
  return {field.begin(), field.end()};
}

void to_proto(const SamplingParams& sampling, v1::Sampling* proto) {
  proto->set_temperature(sampling.temperature);
  proto->set_top_p(sampling.top_p);
  proto->set_top_k(sampling.top_k);
  proto->set_min_p(sampling.min_p);
  proto->set_repetition_penalty(sampling.repetition_penalty);
  proto->set_presence_penalty(sampling.presence_penalty);
  proto->set_frequency_penalty(sampling.frequency_penalty);
  proto->set_seed(sampling.seed);
  proto->set_min_tokens(sampling.min_tokens);
  proto->set_num_logprobs(sampling.num_logprobs);
  proto->set_ignore_eos(sampling.ignore_eos);
  auto* tokens = resized(proto->mutable_bias_tokens(), sampling.logit_bias.size());
  auto* values = resized(proto->mutable_bias_values(), sampling.logit_bias.size());
  for (const auto& [token, value] : sampling.logit_bias) {
    *tokens++ = token;
    *values++ = value;
  }
  assign(proto->mutable_stop_token_ids(), sampling.stop_token_ids);
}

ConvertError from_proto(const v1::Sampling& proto, SamplingParams* sampling) {
  if (proto.bias_tokens_size() != proto.bias_values_size()) {
    return "logit bias has unequal numbers of tokens and values";
  }
  sampling->temperature = proto.temperature();
  sampling->top_p = proto.top_p();
  sampling->top_k = proto.top_k();
  sampling->min_p = proto.min_p();
  sampling->repetition_penalty = proto.repetition_penalty();
  sampling->presence_penalty = proto.presence_penalty();
  sampling->frequency_penalty = proto.frequency_penalty();
  sampling->seed = proto.seed();
  sampling->min_tokens = proto.min_tokens();
  sampling->num_logprobs = proto.num_logprobs();
  sampling->ignore_eos = proto.ignore_eos();
  sampling->logit_bias.reserve(static_cast<std::size_t>(proto.bias_tokens_size()));
  for (int i = 0; i < proto.bias_tokens_size(); ++i) {
    sampling->logit_bias.emplace_back(proto.bias_tokens(i), proto.bias_values(i));
  }
  sampling->stop_token_ids = to_vector<TokenId>(proto.stop_token_ids());
  return {};
}

void to_proto(const std::vector<DecodeRow>& rows, v1::DecodeRows* proto) {
  auto* slots = resized(proto->mutable_slots(), rows.size());
  auto* generations = resized(proto->mutable_generations(), rows.size());
  auto* positions = resized(proto->mutable_positions(), rows.size());
  auto* last_tokens = resized(proto->mutable_last_tokens(), rows.size());
  for (const auto& row : rows) {
    *slots++ = row.slot;
    *generations++ = row.generation;
    *positions++ = row.position;
    *last_tokens++ = row.last_token;
  }
}

ConvertError from_proto(const v1::DecodeRows& proto, std::vector<DecodeRow>* rows) {
  const int count = proto.slots_size();
  if (proto.generations_size() != count || proto.positions_size() != count ||
      proto.last_tokens_size() != count) {
    return "decode rows have columns of unequal length";
  }
  rows->resize(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    (*rows)[static_cast<std::size_t>(i)] = {proto.slots(i), proto.generations(i),
                                            proto.positions(i), proto.last_tokens(i)};
  }
  return {};
}

void to_proto(const SlotOpen& open, v1::SlotOpen* proto) {
  proto->set_slot(open.slot);
  proto->set_generation(open.generation);
  proto->set_prompt_len(open.prompt_len);
  assign(proto->mutable_cached_pages(), open.cached_pages);
  assign(proto->mutable_prompt_tokens(), open.prompt_tokens);
  assign(proto->mutable_output_tokens(), open.output_tokens);
  to_proto(open.sampling, proto->mutable_sampling());
  if (open.copy_page) {
    v1::PageCopy* copy = proto->mutable_copy_page();
    copy->set_source(open.copy_page->source);
    copy->set_target(open.copy_page->target);
    copy->set_num_tokens(open.copy_page->num_tokens);
  }
}

ConvertError from_proto(const v1::SlotOpen& proto, SlotOpen* open) {
  open->slot = proto.slot();
  open->generation = proto.generation();
  open->prompt_len = proto.prompt_len();
  open->cached_pages = to_vector<PageId>(proto.cached_pages());
  open->prompt_tokens = to_vector<TokenId>(proto.prompt_tokens());
  open->output_tokens = to_vector<TokenId>(proto.output_tokens());
  if (proto.has_copy_page()) {
    const v1::PageCopy& copy = proto.copy_page();
    open->copy_page = PageCopy{copy.source(), copy.target(), copy.num_tokens()};
  }
  return from_proto(proto.sampling(), &open->sampling);
}

void to_proto(const PrefillPiece& piece, v1::PrefillPiece* proto) {
  proto->set_slot(piece.slot);
  proto->set_generation(piece.generation);
  proto->set_start_position(piece.start_position);
  assign(proto->mutable_tokens(), piece.tokens);
  assign(proto->mutable_new_pages(), piece.new_pages);
  proto->set_samples(piece.samples);
}

PrefillPiece from_proto(const v1::PrefillPiece& proto) {
  PrefillPiece piece;
  piece.slot = proto.slot();
  piece.generation = proto.generation();
  piece.start_position = proto.start_position();
  piece.tokens = to_vector<TokenId>(proto.tokens());
  piece.new_pages = to_vector<PageId>(proto.new_pages());
  piece.samples = proto.samples();
  return piece;
}

void to_proto(const AttentionLanePlan& lane, v1::AttentionLanePlan* proto) {
  proto->set_lane(lane.lane);
  proto->set_participants(lane.participants);
  proto->set_num_rows(lane.num_rows);
  proto->set_row_bucket(lane.row_bucket);
  proto->set_use_graph(lane.use_graph);
  if (lane.rows) {
    to_proto(*lane.rows, proto->mutable_rows());
  }
  assign(proto->mutable_leaves(), lane.leaves);
  for (const auto& open : lane.opens) {
    to_proto(open, proto->add_opens());
  }
  auto* page_slots = resized(proto->mutable_page_slots(), lane.pages.size());
  auto* pages = resized(proto->mutable_pages(), lane.pages.size());
  for (const auto& append : lane.pages) {
    *page_slots++ = append.slot;
    *pages++ = append.page;
  }
  for (const auto& piece : lane.pieces) {
    to_proto(piece, proto->add_pieces());
  }
}

ConvertError from_proto(const v1::AttentionLanePlan& proto, AttentionLanePlan* lane) {
  if (proto.page_slots_size() != proto.pages_size()) {
    return "page appends have columns of unequal length";
  }
  lane->lane = proto.lane();
  lane->participants = proto.participants();
  lane->num_rows = proto.num_rows();
  lane->row_bucket = proto.row_bucket();
  lane->use_graph = proto.use_graph();
  if (proto.has_rows()) {
    if (auto error = from_proto(proto.rows(), &lane->rows.emplace()); !error.empty()) {
      return error;
    }
  }
  lane->leaves = to_vector<SlotId>(proto.leaves());
  lane->opens.resize(static_cast<std::size_t>(proto.opens_size()));
  for (int i = 0; i < proto.opens_size(); ++i) {
    if (auto error = from_proto(proto.opens(i), &lane->opens[static_cast<std::size_t>(i)]);
        !error.empty()) {
      return error;
    }
  }
  lane->pages.reserve(static_cast<std::size_t>(proto.pages_size()));
  for (int i = 0; i < proto.pages_size(); ++i) {
    lane->pages.push_back({proto.page_slots(i), proto.pages(i)});
  }
  lane->pieces.reserve(static_cast<std::size_t>(proto.pieces_size()));
  for (const auto& piece : proto.pieces()) {
    lane->pieces.push_back(from_proto(piece));
  }
  return {};
}

/// What both kinds of plan promise about their lanes; receivers index arrays by them.
template <typename Plan>
ConvertError check_lanes(const Plan& proto) {
  if (proto.num_lanes() == 0 || proto.num_lanes() > kMaxLanes) {
    return "a plan has 1 to 4 lanes, this one " + std::to_string(proto.num_lanes());
  }
  std::uint32_t lowest_allowed = 0;
  for (const auto& lane : proto.lanes()) {
    if (lane.lane() < lowest_allowed || lane.lane() >= kMaxLanes) {
      return "lane " + std::to_string(lane.lane()) + " is out of order or range";
    }
    lowest_allowed = lane.lane() + 1;
  }
  return {};
}

void top_logprobs_to_proto(const std::vector<SampledToken>& tokens, v1::LaneResult* proto) {
  std::size_t count = 0;
  for (const auto& token : tokens) {
    count += token.top_logprobs.size();
  }
  if (count == 0) {
    return;
  }
  auto* num_top = resized(proto->mutable_num_top(), tokens.size());
  auto* top_tokens = resized(proto->mutable_top_tokens(), count);
  auto* top_logprobs = resized(proto->mutable_top_logprobs(), count);
  for (const auto& token : tokens) {
    *num_top++ = static_cast<std::uint32_t>(token.top_logprobs.size());
    for (const auto& top : token.top_logprobs) {
      *top_tokens++ = top.token;
      *top_logprobs++ = top.logprob;
    }
  }
}

ConvertError top_logprobs_from_proto(const v1::LaneResult& proto,
                                     std::vector<SampledToken>* tokens) {
  if (proto.top_tokens_size() != proto.top_logprobs_size() ||
      (proto.num_top_size() != 0 &&
       static_cast<std::size_t>(proto.num_top_size()) != tokens->size())) {
    return "log-probabilities have columns of unequal length";
  }
  std::uint64_t count = 0;
  for (const std::uint32_t num_top : proto.num_top()) {
    count += num_top;
  }
  if (count != static_cast<std::uint64_t>(proto.top_tokens_size())) {
    return "log-probabilities don't add up to their counts";
  }
  int next = 0;
  for (int i = 0; i < proto.num_top_size(); ++i) {
    auto& top_logprobs = (*tokens)[static_cast<std::size_t>(i)].top_logprobs;
    top_logprobs.resize(proto.num_top(i));
    for (auto& top : top_logprobs) {
      top = {proto.top_tokens(next), proto.top_logprobs(next)};
      ++next;
    }
  }
  return {};
}

}  // namespace

void to_proto(const AttentionStepPlan& plan, v1::AttentionStepPlan* proto) {
  proto->set_epoch(plan.epoch);
  proto->set_step(plan.step);
  proto->set_placement_version(plan.placement_version);
  proto->set_num_lanes(plan.num_lanes);
  proto->set_barrier(plan.barrier);
  for (const auto& lane : plan.lanes) {
    to_proto(lane, proto->add_lanes());
  }
}

ConvertError from_proto(const v1::AttentionStepPlan& proto, AttentionStepPlan* plan) {
  if (auto error = check_lanes(proto); !error.empty()) {
    return error;
  }
  plan->epoch = proto.epoch();
  plan->step = proto.step();
  plan->placement_version = proto.placement_version();
  plan->num_lanes = proto.num_lanes();
  plan->barrier = proto.barrier();
  plan->lanes.resize(static_cast<std::size_t>(proto.lanes_size()));
  for (int i = 0; i < proto.lanes_size(); ++i) {
    if (auto error = from_proto(proto.lanes(i), &plan->lanes[static_cast<std::size_t>(i)]);
        !error.empty()) {
      return error;
    }
  }
  return {};
}

void to_proto(const FfnStepPlan& plan, v1::FfnStepPlan* proto) {
  proto->set_epoch(plan.epoch);
  proto->set_step(plan.step);
  proto->set_placement_version(plan.placement_version);
  proto->set_num_lanes(plan.num_lanes);
  for (const auto& lane : plan.lanes) {
    auto* lane_proto = proto->add_lanes();
    lane_proto->set_lane(lane.lane);
    lane_proto->set_participants(lane.participants);
    lane_proto->set_row_bucket(lane.row_bucket);
    lane_proto->set_use_graph(lane.use_graph);
    lane_proto->mutable_participant_buckets()->Assign(lane.participant_buckets.begin(),
                                                      lane.participant_buckets.end());
  }
}

ConvertError from_proto(const v1::FfnStepPlan& proto, FfnStepPlan* plan) {
  if (auto error = check_lanes(proto); !error.empty()) {
    return error;
  }
  plan->epoch = proto.epoch();
  plan->step = proto.step();
  plan->placement_version = proto.placement_version();
  plan->num_lanes = proto.num_lanes();
  plan->lanes.reserve(static_cast<std::size_t>(proto.lanes_size()));
  for (const auto& lane : proto.lanes()) {
    plan->lanes.push_back({lane.lane(),
                           lane.participants(),
                           lane.row_bucket(),
                           lane.use_graph(),
                           {lane.participant_buckets().begin(), lane.participant_buckets().end()}});
  }
  return {};
}

void to_proto(const LaneResult& result, v1::LaneResult* proto) {
  proto->set_epoch(result.epoch);
  proto->set_step(result.step);
  proto->set_attention_rank(result.attention_rank);
  proto->set_lane(result.lane);
  proto->set_num_rows(result.num_rows);
  proto->set_compute_us(result.compute_us);
  proto->set_wait_us(result.wait_us);
  proto->set_overlapped(result.overlapped);
  const auto& tokens = result.tokens;
  auto* slots = resized(proto->mutable_slots(), tokens.size());
  auto* generations = resized(proto->mutable_generations(), tokens.size());
  auto* positions = resized(proto->mutable_positions(), tokens.size());
  auto* token_ids = resized(proto->mutable_tokens(), tokens.size());
  bool has_logprobs = false;
  for (const auto& token : tokens) {
    *slots++ = token.slot;
    *generations++ = token.generation;
    *positions++ = token.position;
    *token_ids++ = token.token;
    has_logprobs = has_logprobs || std::bit_cast<std::uint32_t>(token.logprob) != 0;
  }
  if (has_logprobs) {
    std::transform(tokens.begin(), tokens.end(), resized(proto->mutable_logprobs(), tokens.size()),
                   [](const SampledToken& token) { return token.logprob; });
  }
  top_logprobs_to_proto(tokens, proto);
}

ConvertError from_proto(const v1::LaneResult& proto, LaneResult* result) {
  const int count = proto.slots_size();
  if (proto.generations_size() != count || proto.positions_size() != count ||
      proto.tokens_size() != count ||
      (proto.logprobs_size() != 0 && proto.logprobs_size() != count)) {
    return "sampled tokens have columns of unequal length";
  }
  if (proto.attention_rank() >= kMaxServers || proto.lane() >= kMaxLanes) {
    return "a lane result names attention server " + std::to_string(proto.attention_rank()) +
           ", lane " + std::to_string(proto.lane()) + ", which can't exist";
  }
  result->epoch = proto.epoch();
  result->step = proto.step();
  result->attention_rank = proto.attention_rank();
  result->lane = proto.lane();
  result->num_rows = proto.num_rows();
  result->compute_us = proto.compute_us();
  result->wait_us = proto.wait_us();
  result->overlapped = proto.overlapped();
  result->tokens.resize(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    auto& token = result->tokens[static_cast<std::size_t>(i)];
    token.slot = proto.slots(i);
    token.generation = proto.generations(i);
    token.position = proto.positions(i);
    token.token = proto.tokens(i);
    token.logprob = proto.logprobs_size() != 0 ? proto.logprobs(i) : 0.0F;
  }
  return top_logprobs_from_proto(proto, &result->tokens);
}

}  // namespace fastfd::control_plane
