#include "attention_server/sequence_table.h"

#include <fmt/format.h>

#include <algorithm>

namespace fastfd::attention_server {
namespace {

Status mismatch(std::string message) {
  return {StatusCode::kInternal, "plan does not fit this server: " + std::move(message)};
}

void count(TokenId token, std::uint32_t times, kernels::TokenCounts& counts) {
  const auto at = std::lower_bound(counts.begin(), counts.end(), token,
                                   [](const auto& entry, TokenId t) { return entry.first < t; });
  if (at == counts.end() || at->first != token) {
    counts.insert(at, {token, times});
  } else {
    at->second += times;
  }
}

}  // namespace

SequenceTable::SequenceTable(const SequenceTableShape& shape)
    : shape_(shape),
      pages_per_slot_((shape.max_model_len + shape.page_size - 1) / shape.page_size),
      slots_(shape.num_slots),
      page_table_(static_cast<std::size_t>(shape.num_slots) * pages_per_slot_) {}

void SequenceTable::reset() {
  for (auto& slot : slots_) {
    slot = Slot{};
  }
  for (auto& rows : decode_rows_) {
    rows.clear();
  }
}

Status SequenceTable::check_slot(SlotId slot) const {
  if (slot >= slots_.size()) {
    return mismatch(fmt::format("slot {} of {}", slot, slots_.size()));
  }
  if (!slots_[slot].open) {
    return mismatch(fmt::format("slot {} was never opened", slot));
  }
  return Status::ok();
}

Status SequenceTable::replace_rows(const AttentionLanePlan& plan) {
  auto& rows = decode_rows_[plan.lane];
  rows.clear();
  for (const DecodeRow& row : *plan.rows) {
    if (auto status = check_slot(row.slot); !status) {
      return status;
    }
    Slot& slot = slots_[row.slot];
    if (slot.generation != row.generation || slot.length != row.position) {
      return mismatch(
          fmt::format("slot {} is generation {} at position {}, the row list says {} "
                      "at {}",
                      row.slot, slot.generation, slot.length, row.generation, row.position));
    }
    if (row.last_token != kNoToken) {
      slot.last_token = row.last_token;
    }
    rows.push_back(row.slot);
  }
  return Status::ok();
}

Status SequenceTable::remove_rows(const AttentionLanePlan& plan) {
  auto& rows = decode_rows_[plan.lane];
  for (const SlotId leaving : plan.leaves) {
    const auto at = std::find(rows.begin(), rows.end(), leaving);
    if (at == rows.end()) {
      return mismatch(fmt::format("slot {} leaves lane {} but is not in it", leaving, plan.lane));
    }
    *at = rows.back();
    rows.pop_back();
  }
  return Status::ok();
}

Status SequenceTable::append_page(SlotId id, PageId page, LaneBatch& batch) {
  Slot& slot = slots_[id];
  if (page >= shape_.num_pages || slot.num_pages >= pages_per_slot_) {
    return mismatch(fmt::format("page {} of {} as entry {} of slot {}", page, shape_.num_pages,
                                slot.num_pages, id));
  }
  batch.page_updates.push_back({id, slot.num_pages, page});
  page_table_[static_cast<std::size_t>(id) * pages_per_slot_ + slot.num_pages++] = page;
  return Status::ok();
}

Status SequenceTable::open_slot(const SlotOpen& open, LaneBatch& batch) {
  if (open.slot >= slots_.size()) {
    return mismatch(fmt::format("slot {} of {}", open.slot, slots_.size()));
  }
  if (shape_.recurrent_state && (!open.cached_pages.empty() || open.copy_page)) {
    return mismatch(
        fmt::format("slot {} begins behind cached tokens, whose recurrent state nobody "
                    "kept",
                    open.slot));
  }
  Slot& slot = slots_[open.slot];
  slot.generation = open.generation;
  slot.open = true;
  slot.num_pages = 0;
  slot.prompt_len = open.prompt_len;
  slot.last_token = kNoToken;
  slot.sampling = open.sampling;
  batch.opened.push_back(open.slot);
  slot.counts.clear();
  for (const TokenId token : open.prompt_tokens) {
    count(token, 0, slot.counts);
  }
  for (const TokenId token : open.output_tokens) {
    count(token, 1, slot.counts);
  }
  for (const PageId page : open.cached_pages) {
    if (auto status = append_page(open.slot, page, batch); !status) {
      return status;
    }
  }
  slot.length = slot.num_pages * shape_.page_size;
  if (open.copy_page) {
    const PageCopy& copy = *open.copy_page;
    if (copy.source >= shape_.num_pages || copy.num_tokens == 0 ||
        copy.num_tokens >= shape_.page_size) {
      return mismatch(
          fmt::format("slot {} copies {} tokens of page {}; a page has {}, and there "
                      "are {}",
                      open.slot, copy.num_tokens, copy.source, shape_.page_size, shape_.num_pages));
    }
    if (auto status = append_page(open.slot, copy.target, batch); !status) {
      return status;
    }
    slot.length += copy.num_tokens;
    batch.copies.push_back(copy);
  }
  return Status::ok();
}

void SequenceTable::add_span(SlotId id, std::uint32_t first_row, std::uint32_t num_rows,
                             LaneBatch& batch) {
  const Slot& slot = slots_[id];
  batch.span_slots.push_back(id);
  batch.spans.push_back({.first_row = first_row,
                         .num_rows = num_rows,
                         .start_position = slot.length,
                         .pages = &page_table_[static_cast<std::size_t>(id) * pages_per_slot_]});
}

Status SequenceTable::add_decode_rows(const AttentionLanePlan& plan, LaneBatch& batch) {
  for (const SlotId id : decode_rows_[plan.lane]) {
    Slot& slot = slots_[id];
    if (slot.last_token == kNoToken && !shape_.tokens_on_device) {
      return mismatch(fmt::format("slot {} has no token to feed", id));
    }
    if (slot.length >= slot.num_pages * shape_.page_size) {
      return mismatch(fmt::format("slot {} has no page for position {}", id, slot.length));
    }
    const auto row = static_cast<std::uint32_t>(batch.tokens.size());
    batch.tokens.push_back(slot.last_token);
    batch.positions.push_back(static_cast<std::int32_t>(slot.length));
    add_span(id, row, 1, batch);
    ++slot.length;
    batch.samples.push_back({row, id, slot.generation, slot.length, slot.prompt_len});
  }
  return Status::ok();
}

Status SequenceTable::add_piece(const PrefillPiece& piece, LaneBatch& batch) {
  if (auto status = check_slot(piece.slot); !status) {
    return status;
  }
  Slot& slot = slots_[piece.slot];
  const auto num_tokens = static_cast<std::uint32_t>(piece.tokens.size());
  if (slot.generation != piece.generation || slot.length != piece.start_position ||
      num_tokens == 0) {
    return mismatch(fmt::format(
        "slot {} is generation {} at position {}, the piece says {} at {} with {} tokens",
        piece.slot, slot.generation, slot.length, piece.generation, piece.start_position,
        num_tokens));
  }
  for (const PageId page : piece.new_pages) {
    if (auto status = append_page(piece.slot, page, batch); !status) {
      return status;
    }
  }
  if (slot.length + num_tokens > slot.num_pages * shape_.page_size) {
    return mismatch(fmt::format("slot {} has {} pages for {} tokens", piece.slot, slot.num_pages,
                                slot.length + num_tokens));
  }
  const auto first_row = static_cast<std::uint32_t>(batch.tokens.size());
  add_span(piece.slot, first_row, num_tokens, batch);
  for (std::uint32_t i = 0; i < num_tokens; ++i) {
    batch.tokens.push_back(piece.tokens[i]);
    batch.positions.push_back(static_cast<std::int32_t>(slot.length + i));
  }
  slot.length += num_tokens;
  if (piece.samples) {
    batch.samples.push_back(
        {first_row + num_tokens - 1, piece.slot, slot.generation, slot.length, slot.prompt_len});
    joining_.push_back(piece.slot);
  }
  return Status::ok();
}

Status SequenceTable::build(const AttentionLanePlan& plan, LaneBatch& batch) {
  batch.tokens.clear();
  batch.positions.clear();
  batch.spans.clear();
  batch.span_slots.clear();
  batch.samples.clear();
  batch.copies.clear();
  batch.page_updates.clear();
  batch.opened.clear();
  joining_.clear();
  batch.num_rows = 0;
  if (plan.lane >= kMaxLanes) {
    return mismatch(fmt::format("lane {}", plan.lane));
  }
  if (plan.rows) {
    if (auto status = replace_rows(plan); !status) {
      return status;
    }
  }
  if (auto status = remove_rows(plan); !status) {
    return status;
  }
  for (const PageAppend& append : plan.pages) {
    auto status = check_slot(append.slot);
    if (status) {
      status = append_page(append.slot, append.page, batch);
    }
    if (!status) {
      return status;
    }
  }
  if (auto status = add_decode_rows(plan, batch); !status) {
    return status;
  }
  for (const SlotOpen& open : plan.opens) {
    if (auto status = open_slot(open, batch); !status) {
      return status;
    }
  }
  for (const PrefillPiece& piece : plan.pieces) {
    if (auto status = add_piece(piece, batch); !status) {
      return status;
    }
  }
  auto& rows = decode_rows_[plan.lane];
  rows.insert(rows.end(), joining_.begin(), joining_.end());
  batch.num_rows = static_cast<std::uint32_t>(batch.tokens.size());
  if (batch.num_rows != plan.num_rows || batch.num_rows > shape_.max_lane_rows) {
    return mismatch(fmt::format("lane {} has {} rows, the plan says {} and a lane holds {}",
                                plan.lane, batch.num_rows, plan.num_rows, shape_.max_lane_rows));
  }
  return Status::ok();
}

void SequenceTable::set_sampled(const SampleRow& row, TokenId token) {
  Slot& slot = slots_[row.slot];
  if (slot.generation != row.generation) {
    return;
  }
  // Rows of a sequence without a next token, which has ended, may be planned already: any will do.
  slot.last_token = token != kNoToken ? token : 0;
  if (token != kNoToken && slot.sampling.has_penalties()) {
    count(token, 1, slot.counts);
  }
}

}  // namespace fastfd::attention_server
