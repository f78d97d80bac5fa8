#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <new>

#include "fastfd/text/error.h"

namespace fastfd::text {
namespace {

// A split pattern needs a few steps a character; only patterns that backtrack without bound come
// near these.
constexpr std::uint32_t kMatchLimit = 20'000'000;
constexpr std::uint32_t kHeapLimitKiB = 64 * 1024;
constexpr std::size_t kJitStackStart = 64 * 1024;
constexpr std::size_t kJitStackMax = std::size_t{8} * 1024 * 1024;

std::string error_text(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

struct CodeFree {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDataFree {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct MatchContextFree {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct CompileContextFree {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};
struct JitStackFree {
  void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};

}  // namespace

struct RegexScratch::Impl {
  std::unique_ptr<pcre2_match_data, MatchDataFree> match_data;
  std::unique_ptr<pcre2_match_context, MatchContextFree> context;
  std::unique_ptr<pcre2_jit_stack, JitStackFree> jit_stack;
};

RegexScratch::RegexScratch() : impl_(std::make_unique<Impl>()) {
  impl_->match_data.reset(pcre2_match_data_create(1, nullptr));
  impl_->context.reset(pcre2_match_context_create(nullptr));
  impl_->jit_stack.reset(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr));
  if (!impl_->match_data || !impl_->context) {
    throw std::bad_alloc();
  }
  pcre2_set_match_limit(impl_->context.get(), kMatchLimit);
  pcre2_set_heap_limit(impl_->context.get(), kHeapLimitKiB);
  if (impl_->jit_stack) {  // without it the JIT uses 32 KiB of the thread's own stack
    pcre2_jit_stack_assign(impl_->context.get(), nullptr, impl_->jit_stack.get());
  }
}

RegexScratch::~RegexScratch() = default;

struct Regex::Impl {
  std::string source;
  std::unique_ptr<pcre2_code, CodeFree> code;
  bool has_jit = false;
};

Regex::Regex(std::string_view oniguruma_pattern) {
  auto impl = std::make_unique<Impl>();
  impl->source = oniguruma_pattern;
  const std::string pattern = translate_oniguruma(oniguruma_pattern);
  const std::unique_ptr<pcre2_compile_context, CompileContextFree> context(
      pcre2_compile_context_create(nullptr));
  if (!context) {
    throw std::bad_alloc();
  }
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  // In the Ruby dialect ^ and $ always match at lines.
  impl->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &error_offset,
                                 context.get()));
  if (!impl->code) {
    throw TextError(fmt::format("regular expression '{}' cannot be used: {} (at byte {} of '{}')",
                                oniguruma_pattern, error_text(error), error_offset, pattern));
  }
  impl->has_jit = pcre2_jit_compile(impl->code.get(), PCRE2_JIT_COMPLETE) == 0;
  impl_ = std::move(impl);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

std::optional<Span> Regex::find(std::string_view text, std::size_t start,
                                RegexScratch& scratch) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  pcre2_match_data* match_data = scratch.impl_->match_data.get();
  pcre2_match_context* context = scratch.impl_->context.get();
  const int rc = impl_->has_jit ? pcre2_jit_match(impl_->code.get(), subject, text.size(), start, 0,
                                                  match_data, context)
                                : pcre2_match(impl_->code.get(), subject, text.size(), start,
                                              PCRE2_NO_UTF_CHECK, match_data, context);
  if (rc == PCRE2_ERROR_NOMATCH) {
    return std::nullopt;
  }
  if (rc < 0) {
    throw TextError(
        fmt::format("regular expression '{}' failed at byte {} of a text of {} bytes: {}; the "
                    "pattern backtracks too much for this text, split the text or shorten it",
                    impl_->source, start, text.size(), error_text(rc)));
  }
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(match_data);
  return Span{offsets[0], offsets[1]};
}

}  // namespace fastfd::text
