#pragma once

/// Attention of up to 16 queries over the paged keys and values of one KV head: softmax on line
/// over blocks of tokens (Milakov and Gimelshein, "Online normalizer calculation for softmax",
/// 2018; blocked as in FlashAttention). Blocks lie at fixed positions of the sequence and every sum
/// of a query runs over its tokens in ascending order, whatever queries it shares a call with.
/// Blocks before a query's window don't touch it.

#include "kernels/simd/table.h"
#include "kernels/simd/vec.h"

namespace fastfd::kernels::FASTFD_SIMD {

/// head_dim is worked on in chunks of two registers. From a bf16 pool a chunk arrives as its even
/// and its odd elements, so queries and outputs are kept in that order inside the scratch.
struct Bf16Pool {
  using Element = Bf16Bits;
  static FASTFD_INLINE void load_chunk(const Element* p, Vec& a, Vec& b) {
    load_bf16_pairs(p, a, b);
  }
  static FASTFD_INLINE void store_chunk(float* p, Vec a, Vec b) { store_interleaved(p, a, b); }
  static FASTFD_INLINE std::int64_t slot(std::int64_t dim) {
    const std::int64_t in_chunk = dim % (2 * kLanes);
    return dim - in_chunk + in_chunk / 2 + in_chunk % 2 * kLanes;
  }
};

struct FloatPool {
  using Element = float;
  static FASTFD_INLINE void load_chunk(const Element* p, Vec& a, Vec& b) {
    a = load(p);
    b = load(p + kLanes);
  }
  static FASTFD_INLINE void store_chunk(float* p, Vec a, Vec b) {
    store(p, a);
    store(p + kLanes, b);
  }
  static FASTFD_INLINE std::int64_t slot(std::int64_t dim) { return dim; }
};

inline constexpr std::int64_t kChunk = 2 * kLanes;
inline constexpr std::int64_t kTokens = simd::kAttentionTokens;
/// Queries that share the loads of a key or value, bounded by the register file.
inline constexpr int kQueryGroup = kLanes == 16 ? 4 : 2;

/// Rows of keys or values of one token block.
template <typename Pool>
struct TokenRows {
  const typename Pool::Element* keys[kTokens];
  const typename Pool::Element* values[kTokens];
};

template <typename Pool>
struct AttentionState {
  const simd::AttentionBlock& block;
  std::int64_t dim;                ///< of keys: num_chunks * kChunk
  std::int64_t value_dim;          ///< of values, likewise
  float* queries = nullptr;        ///< [num_queries, dim]
  float* sums = nullptr;           ///< [num_queries, dim], of which value_dim are used
  float* probabilities = nullptr;  ///< [num_queries, kTokens]; scores before the softmax
  typename Pool::Element* padded_keys = nullptr;
  typename Pool::Element* padded_values = nullptr;  ///< [kTokens, dim], only for odd head sizes
  float largest[simd::kMaxAttentionQueries] = {};
  float totals[simd::kMaxAttentionQueries] = {};
};

/// Which of a block's tokens each query sees: [begins, ends), both ascending. Queries [first, last)
/// see any.
struct VisibleTokens {
  std::int64_t begins[simd::kMaxAttentionQueries];
  std::int64_t ends[simd::kMaxAttentionQueries];
  std::int64_t first = 0;
  std::int64_t last = 0;
};

/// Of the block of `num` tokens from `first` on.
inline VisibleTokens visible_tokens(const simd::AttentionBlock& block, std::int64_t first,
                                    std::int64_t num) {
  VisibleTokens visible;
  visible.last = block.num_queries;
  for (std::int64_t i = block.num_queries - 1; i >= 0; --i) {
    const std::int64_t end = block.limits[i] - first;
    const std::int64_t begin = block.window > 0 ? end - block.window : 0;
    visible.ends[i] = end < num ? end : num;
    visible.begins[i] = begin > 0 ? begin : 0;
    visible.last -= begin >= num ? 1 : 0;
    visible.first += end <= 0 ? 1 : 0;
  }
  return visible;
}

/// A zero-padded copy of a row whose length is no multiple of a chunk.
template <typename Pool>
const typename Pool::Element* padded_row(const typename Pool::Element* row,
                                         typename Pool::Element* copy, std::int64_t head_dim,
                                         std::int64_t dim) {
  for (std::int64_t i = 0; i < dim; ++i) {
    copy[i] = i < head_dim ? row[i] : typename Pool::Element{0};
  }
  return copy;
}

/// Where tokens [first, first + num) lie. Entries past `num` repeat the last row: their scores are
/// computed and thrown away.
template <typename Pool>
void find_rows(const AttentionState<Pool>& state, std::int64_t first, std::int64_t num,
               TokenRows<Pool>& rows) {
  using Element = typename Pool::Element;
  const simd::AttentionBlock& block = state.block;
  const int page_shift = __builtin_ctzll(static_cast<unsigned long long>(block.page_size));
  for (std::int64_t t = 0; t < num; ++t) {
    const std::int64_t position = first + t;
    const std::int64_t offset = block.pages[position >> page_shift] * block.page_stride +
                                (position & (block.page_size - 1)) * block.head_dim;
    rows.keys[t] = static_cast<const Element*>(block.keys) + offset;
    rows.values[t] = static_cast<const Element*>(block.values) + offset;
    if (state.dim != block.head_dim) {
      rows.keys[t] = padded_row<Pool>(rows.keys[t], state.padded_keys + t * state.dim,
                                      block.head_dim, state.dim);
      rows.values[t] = padded_row<Pool>(rows.values[t], state.padded_values + t * state.dim,
                                        block.head_dim, state.dim);
    }
  }
  for (std::int64_t t = num; t < kTokens; ++t) {
    rows.keys[t] = rows.keys[num - 1];
    rows.values[t] = rows.values[num - 1];
  }
}

/// Asks for the rows of a coming block while the current one is computed: pages are scattered,
/// which the hardware cannot foresee.
template <typename Element>
FASTFD_INLINE void prefetch_rows(const Element* const* rows, std::int64_t num, std::int64_t dim) {
  constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(Element));
  for (std::int64_t t = 0; t < num; ++t) {
    for (std::int64_t d = 0; d < dim; d += kLine) {
      __builtin_prefetch(rows[t] + d, 0, 2);
    }
  }
}

/// Scores of kQueries queries from `query` on against the first `num` tokens, rounded up to kLanes.
template <typename Pool, int kQueries>
void score_tile(const AttentionState<Pool>& state, const TokenRows<Pool>& rows, std::int64_t num,
                std::int64_t query) {
  const float* q = state.queries + query * state.dim;
  const Vec scale = set1(state.block.scale);
  for (std::int64_t t = 0; t < num; t += kLanes) {
    Vec folded[kQueries][kLanes / 4];
    for (int quad = 0; quad < kLanes / 4; ++quad) {
      const typename Pool::Element* const* keys = rows.keys + t + quad * 4;
      Vec acc[kQueries][4];
#pragma GCC unroll 4
      for (int h = 0; h < kQueries; ++h) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          acc[h][i] = zero();
        }
      }
      for (std::int64_t d = 0; d < state.dim; d += kChunk) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          Vec a;
          Vec b;
          Pool::load_chunk(keys[i] + d, a, b);
#pragma GCC unroll 4
          for (int h = 0; h < kQueries; ++h) {
            acc[h][i] = fma(a, load(q + h * state.dim + d), acc[h][i]);
            acc[h][i] = fma(b, load(q + h * state.dim + d + kLanes), acc[h][i]);
          }
        }
      }
#pragma GCC unroll 4
      for (int h = 0; h < kQueries; ++h) {
        folded[h][quad] = fold4(acc[h][0], acc[h][1], acc[h][2], acc[h][3]);
      }
    }
    for (int h = 0; h < kQueries; ++h) {
      store(state.probabilities + (query + h) * kTokens + t, mul(fold_lanes(folded[h]), scale));
    }
  }
}

/// sums += probability * value over tokens [begin, end), for kQueries queries and kChunks chunks.
template <typename Pool, int kQueries, int kChunks>
void value_tile(const AttentionState<Pool>& state, const TokenRows<Pool>& rows, std::int64_t begin,
                std::int64_t end, std::int64_t query, std::int64_t d) {
  float* sums = state.sums + query * state.dim + d;
  const float* p = state.probabilities + query * kTokens;
  Vec acc[kQueries][2 * kChunks];
#pragma GCC unroll 4
  for (int h = 0; h < kQueries; ++h) {
#pragma GCC unroll 4
    for (int i = 0; i < 2 * kChunks; ++i) {
      acc[h][i] = load(sums + h * state.dim + i * kLanes);
    }
  }
  for (std::int64_t t = begin; t < end; ++t) {
    const typename Pool::Element* value = rows.values[t] + d;
    Vec x[2 * kChunks];
#pragma GCC unroll 4
    for (int i = 0; i < kChunks; ++i) {
      Pool::load_chunk(value + i * kChunk, x[2 * i], x[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int h = 0; h < kQueries; ++h) {
      const Vec weight = set1(p[h * kTokens + t]);
#pragma GCC unroll 4
      for (int i = 0; i < 2 * kChunks; ++i) {
        acc[h][i] = fma(weight, x[i], acc[h][i]);
      }
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kQueries; ++h) {
#pragma GCC unroll 4
    for (int i = 0; i < 2 * kChunks; ++i) {
      store(sums + h * state.dim + i * kLanes, acc[h][i]);
    }
  }
}

template <typename Pool, int kQueries>
void add_values(const AttentionState<Pool>& state, const TokenRows<Pool>& rows, std::int64_t begin,
                std::int64_t end, std::int64_t query) {
  if (begin >= end) {
    return;
  }
  std::int64_t d = 0;
  for (; d + 2 * kChunk <= state.value_dim; d += 2 * kChunk) {
    value_tile<Pool, kQueries, 2>(state, rows, begin, end, query, d);
  }
  if (d < state.value_dim) {
    value_tile<Pool, kQueries, 1>(state, rows, begin, end, query, d);
  }
}

/// Turns the scores of one query into probabilities relative to its new maximum; tokens outside
/// [begin, end) get none.
template <typename Pool>
void softmax_block(AttentionState<Pool>& state, std::int64_t query, std::int64_t begin,
                   std::int64_t end) {
  float* p = state.probabilities + query * kTokens;
  for (std::int64_t t = 0; t < begin; ++t) {
    p[t] = -__builtin_inff();
  }
  for (std::int64_t t = end; t < kTokens; ++t) {
    p[t] = -__builtin_inff();
  }
  Vec block_largest = load(p);
  for (std::int64_t t = kLanes; t < kTokens; t += kLanes) {
    block_largest = max(block_largest, load(p + t));
  }
  const float old_largest = state.largest[query];
  const float new_largest = reduce_max(max(block_largest, set1(old_largest)));
  const Vec shift = set1(new_largest);
  Vec sum = zero();
  for (std::int64_t t = 0; t < kTokens; t += kLanes) {
    const Vec e = exp(sub(load(p + t), shift));
    sum = add(sum, e);
    store(p + t, e);
  }
  float total = state.totals[query];
  if (new_largest != old_largest) {
    const Vec correction = exp(sub(set1(old_largest), shift));
    total *= reduce_max(correction);
    float* sums = state.sums + query * state.dim;
    for (std::int64_t d = 0; d < state.value_dim; d += kLanes) {
      store(sums + d, mul(load(sums + d), correction));
    }
    state.largest[query] = new_largest;
  }
  state.totals[query] = total + reduce_add(sum);
}

/// kQueries queries, then the rest in smaller groups.
template <typename Pool, int kQueries>
void score_groups(const AttentionState<Pool>& state, const TokenRows<Pool>& rows, std::int64_t num,
                  std::int64_t query, std::int64_t last) {
  for (; query + kQueries <= last; query += kQueries) {
    score_tile<Pool, kQueries>(state, rows, num, query);
  }
  if constexpr (kQueries > 1) {
    score_groups<Pool, kQueries / 2>(state, rows, num, query, last);
  }
}

template <typename Pool, int kQueries>
void value_groups(const AttentionState<Pool>& state, const TokenRows<Pool>& rows,
                  const VisibleTokens& visible, std::int64_t query) {
  for (; query + kQueries <= visible.last; query += kQueries) {
    // The window of the last of a group begins last, and the first sees the fewest tokens at the
    // end; what the others see before and beyond is added one by one, so that nothing a query may
    // not see touches it.
    const std::int64_t begin = visible.begins[query + kQueries - 1];
    const std::int64_t end = visible.ends[query] > begin ? visible.ends[query] : begin;
    const bool see_the_same = visible.begins[query] == begin && visible.ends[query] == end &&
                              visible.ends[query + kQueries - 1] == end;
    if (see_the_same) {
      add_values<Pool, kQueries>(state, rows, begin, end, query);
      continue;
    }
    for (int h = 0; h < kQueries; ++h) {
      const std::int64_t last = visible.ends[query + h];
      add_values<Pool, 1>(state, rows, visible.begins[query + h], begin < last ? begin : last,
                          query + h);
    }
    add_values<Pool, kQueries>(state, rows, begin, end, query);
    for (int h = 0; h < kQueries; ++h) {
      add_values<Pool, 1>(state, rows, end, visible.ends[query + h], query + h);
    }
  }
  if constexpr (kQueries > 1) {
    value_groups<Pool, kQueries / 2>(state, rows, visible, query);
  }
}

template <typename Pool>
void begin_queries(AttentionState<Pool>& state) {
  for (std::int64_t i = 0; i < state.block.num_queries; ++i) {
    float* q = state.queries + i * state.dim;
    float* sums = state.sums + i * state.dim;
    for (std::int64_t d = 0; d < state.dim; ++d) {
      q[Pool::slot(d)] = d < state.block.head_dim ? state.block.queries[i][d] : 0.0F;
      sums[d] = 0.0F;
    }
    // A sink is a token without a value, before all others.
    const bool has_sink = state.block.sinks != nullptr;
    state.largest[i] = has_sink ? state.block.sinks[i] : -__builtin_inff();
    state.totals[i] = has_sink ? 1.0F : 0.0F;
  }
}

template <typename Pool>
void end_queries(const AttentionState<Pool>& state) {
  float chunk[kChunk];
  for (std::int64_t i = 0; i < state.block.num_queries; ++i) {
    const Vec total = set1(state.totals[i]);
    const float* sums = state.sums + i * state.dim;
    for (std::int64_t d = 0; d < state.value_dim; d += kChunk) {
      Pool::store_chunk(chunk, div(load(sums + d), total), div(load(sums + d + kLanes), total));
      for (std::int64_t j = 0; j < kChunk && d + j < state.block.value_dim; ++j) {
        state.block.outputs[i][d + j] = chunk[j];
      }
    }
  }
}

template <typename Pool>
void attend(const simd::AttentionBlock& block) {
  const std::int64_t dim = (block.head_dim + kChunk - 1) / kChunk * kChunk;
  float* scratch = block.scratch;
  AttentionState<Pool> state{
      .block = block, .dim = dim, .value_dim = (block.value_dim + kChunk - 1) / kChunk * kChunk};
  state.queries = scratch;
  state.sums = scratch + simd::kMaxAttentionQueries * dim;
  state.probabilities = scratch + 2 * simd::kMaxAttentionQueries * dim;
  scratch = state.probabilities + simd::kMaxAttentionQueries * kTokens;
  state.padded_keys = reinterpret_cast<typename Pool::Element*>(scratch);
  state.padded_values = state.padded_keys + kTokens * dim;
  begin_queries(state);

  TokenRows<Pool> blocks[2];
  const std::int64_t num_tokens = block.limits[block.num_queries - 1];
  const auto tokens_from = [num_tokens](std::int64_t first) {
    return num_tokens - first < kTokens ? num_tokens - first : kTokens;
  };
  // The first query's window begins first.
  const std::int64_t hidden = block.window > 0 ? block.limits[0] - block.window : 0;
  const std::int64_t first_block = hidden > 0 ? hidden / kTokens * kTokens : 0;
  find_rows(state, first_block, tokens_from(first_block), blocks[first_block / kTokens % 2]);
  for (std::int64_t first = first_block; first < num_tokens; first += kTokens) {
    const TokenRows<Pool>& rows = blocks[first / kTokens % 2];
    TokenRows<Pool>& next = blocks[(first / kTokens + 1) % 2];
    const std::int64_t num = tokens_from(first);
    // Padded rows are copies in one buffer: those of the next block are made when this one is done.
    const bool look_ahead = state.dim == block.head_dim && first + kTokens < num_tokens;
    const std::int64_t num_next = look_ahead ? tokens_from(first + kTokens) : 0;
    if (look_ahead) {
      find_rows(state, first + kTokens, num_next, next);
    }
    const VisibleTokens visible = visible_tokens(block, first, num);
    prefetch_rows(next.keys, num_next, state.dim);
    score_groups<Pool, kQueryGroup>(state, rows, num, visible.first, visible.last);
    for (std::int64_t i = visible.first; i < visible.last; ++i) {
      softmax_block(state, i, visible.begins[i], visible.ends[i]);
    }
    if (block.values != block.keys) {
      prefetch_rows(next.values, num_next, state.value_dim);
    }
    value_groups<Pool, kQueryGroup>(state, rows, visible, visible.first);
    if (!look_ahead && first + kTokens < num_tokens) {
      find_rows(state, first + kTokens, tokens_from(first + kTokens), next);
    }
  }
  end_queries(state);
}

inline void attention(const simd::AttentionBlock& block) {
  if (block.pool_is_bf16) {
    attend<Bf16Pool>(block);
  } else {
    attend<FloatPool>(block);
  }
}

}  // namespace fastfd::kernels::FASTFD_SIMD
