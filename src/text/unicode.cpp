#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "fastfd/text/error.h"
#include "text/utf8.h"

namespace fastfd::text {
namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

constexpr char32_t kNumCodePoints = 0x110000;

/// Characters at which text can be cut without changing its NFC form: combining class 0 and
/// NFC_Quick_Check = Yes. Made once from utf8proc's tables.
class NfcBoundaries {
 public:
  NfcBoundaries() : safe_(kNumCodePoints / 64, ~std::uint64_t{0}) {
    for (char32_t c = 0; c < kNumCodePoints; ++c) {
      const utf8proc_property_t* property = utf8proc_get_property(static_cast<int>(c));
      if (property->combining_class != 0) {
        clear(c);
      }
      if (property->decomp_type == 0 && property->decomp_seqindex != UINT16_MAX) {
        visit_decomposable(c);
      }
    }
    // Hangul vowels and trailing consonants compose by rule, not by table.
    for (char32_t c = 0x1161; c <= 0x1175; ++c) {
      clear(c);
    }
    for (char32_t c = 0x11A8; c <= 0x11C2; ++c) {
      clear(c);
    }
  }

  bool is_safe(char32_t c) const { return ((safe_[c / 64] >> (c % 64)) & 1U) != 0; }

 private:
  void clear(char32_t c) { safe_[c / 64] &= ~(std::uint64_t{1} << (c % 64)); }

  /// Not a boundary: what NFC replaces, and what may compose with the character before it.
  void visit_decomposable(char32_t c) {
    std::array<utf8proc_int32_t, 8> parts{};
    int last_boundary = 0;
    const auto num_parts = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts.data(),
                                                   static_cast<utf8proc_ssize_t>(parts.size()),
                                                   UTF8PROC_DECOMPOSE, &last_boundary);
    if (num_parts <= 0 || static_cast<std::size_t>(num_parts) > parts.size()) {
      return;
    }
    for (utf8proc_ssize_t i = 1; i < num_parts; ++i) {
      clear(static_cast<char32_t>(parts[static_cast<std::size_t>(i)]));
    }
    const auto num_composed = utf8proc_normalize_utf32(
        parts.data(), num_parts,
        static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    if (num_composed != 1 || parts[0] != static_cast<utf8proc_int32_t>(c)) {
      clear(c);
    }
  }

  std::vector<std::uint64_t> safe_;
};

const NfcBoundaries& nfc_boundaries() {
  static const NfcBoundaries boundaries;
  return boundaries;
}

void append_normalized(std::string_view text, NormalizationForm form, std::string& out) {
  int options = UTF8PROC_STABLE;
  options |= form == NormalizationForm::kNfc || form == NormalizationForm::kNfkc
                 ? UTF8PROC_COMPOSE
                 : UTF8PROC_DECOMPOSE;
  if (form == NormalizationForm::kNfkc || form == NormalizationForm::kNfkd) {
    options |= UTF8PROC_COMPAT;
  }
  utf8proc_uint8_t* mapped = nullptr;
  const auto num_bytes = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                      static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                                      static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  if (num_bytes == UTF8PROC_ERROR_NOMEM) {
    throw std::bad_alloc();
  }
  if (num_bytes < 0) {
    throw TextError(std::string("Unicode normalisation failed: ") + utf8proc_errmsg(num_bytes));
  }
  out.append(reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(num_bytes));
}

/// Only what lies between two boundaries can change, so only that goes through utf8proc: text in
/// most scripts is copied, or not even that.
std::string_view normalize_nfc(std::string_view text, std::string& buffer) {
  const NfcBoundaries& boundaries = nfc_boundaries();
  std::size_t copied = 0;         // text before it is in the buffer
  std::size_t last_boundary = 0;  // start of the last safe character
  std::size_t pos = 0;
  bool changed = false;
  while (pos < text.size()) {
    const std::size_t num_ascii = ascii_prefix(text.substr(pos));
    if (num_ascii > 0) {
      pos += num_ascii;
      last_boundary = pos - 1;
      continue;
    }
    const std::size_t start = pos;
    const char32_t c = next_code_point(text, pos);
    if (boundaries.is_safe(c)) {
      last_boundary = start;
      continue;
    }
    std::size_t end = pos;
    while (pos < text.size() && !boundaries.is_safe(next_code_point(text, pos))) {
      end = pos;
    }
    pos = end;
    if (!changed) {
      buffer.clear();
      changed = true;
    }
    buffer += text.substr(copied, last_boundary - copied);
    append_normalized(text.substr(last_boundary, end - last_boundary), NormalizationForm::kNfc,
                      buffer);
    copied = end;
    last_boundary = end;
  }
  if (!changed) {
    return text;
  }
  buffer += text.substr(copied);
  return buffer;
}

/// Characters whose upper case is longer than one character (SpecialCasing of the Unicode
/// database, unconditional part, for scripts in use).
struct SpecialUpper {
  char32_t code_point;
  std::string_view upper;
  std::string_view title;
};
constexpr auto kSpecialUpper = std::to_array<SpecialUpper>({
    {0x00DF, "SS", "Ss"},
    {0x0149, "\u02BCN", "\u02BCN"},
    {0x01F0, "J\u030C", "J\u030C"},
    {0x0390, "\u0399\u0308\u0301", "\u0399\u0308\u0301"},
    {0x03B0, "\u03A5\u0308\u0301", "\u03A5\u0308\u0301"},
    {0x0587, "\u0535\u0552", "\u0535\u0582"},
    {0x1E96, "H\u0331", "H\u0331"},
    {0x1E97, "T\u0308", "T\u0308"},
    {0x1E98, "W\u030A", "W\u030A"},
    {0x1E99, "Y\u030A", "Y\u030A"},
    {0x1E9A, "A\u02BE", "A\u02BE"},
    {0xFB00, "FF", "Ff"},
    {0xFB01, "FI", "Fi"},
    {0xFB02, "FL", "Fl"},
    {0xFB03, "FFI", "Ffi"},
    {0xFB04, "FFL", "Ffl"},
    {0xFB05, "ST", "St"},
    {0xFB06, "ST", "St"},
});

const SpecialUpper* find_special_upper(char32_t c) {
  const auto* it = std::lower_bound(
      kSpecialUpper.begin(), kSpecialUpper.end(), c,
      [](const SpecialUpper& entry, char32_t value) { return entry.code_point < value; });
  return it != kSpecialUpper.end() && it->code_point == c ? it : nullptr;
}

bool is_cased(char32_t c) { return is_upper(c) || is_lower(c) || is_title(c); }

/// Unicode's Case_Ignorable, as far as general categories tell.
bool is_case_ignorable(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return c == '\'' || c == '.' || c == ':' || c == 0xB7 || c == 0x2019 || c == 0x2018;
  }
}

/// A capital sigma at [start, end) ends its word: a cased letter before it and none after.
bool is_final_sigma(std::string_view text, std::size_t start, std::size_t end) {
  bool cased_before = false;
  while (start > 0) {
    start = previous_boundary(text, start);
    std::size_t pos = start;
    const char32_t c = next_code_point(text, pos);
    if (!is_case_ignorable(c)) {
      cased_before = is_cased(c);
      break;
    }
  }
  while (cased_before && end < text.size()) {
    const char32_t c = next_code_point(text, end);
    if (!is_case_ignorable(c)) {
      return !is_cased(c);
    }
  }
  return cased_before;
}

}  // namespace

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_python_space(char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

bool is_letter(char32_t c) {
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_number(char32_t c) {
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO;
}

bool is_decimal(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }

bool is_punctuation(char32_t c) {
  if (c < 0x80) {
    return c > 0x20 && c < 0x7F && !is_letter(c) && !is_number(c);
  }
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO;
}

bool is_upper(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA;  // ordinal indicators
}
bool is_title(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LT; }

bool is_printable(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

bool is_word(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      // Join controls and the circled letters are in \w by Join_Control and Other_Alphabetic.
      return is_letter(c) || c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9);
  }
}

void append_lower(std::string& out, char32_t c) {
  if (c == 0x0130) {  // the only character whose lower case is longer than one
    out += "i\u0307";
    return;
  }
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<int>(c))));
}

void append_upper(std::string& out, char32_t c) {
  if (const SpecialUpper* special = find_special_upper(c)) {
    out += special->upper;
    return;
  }
  append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<int>(c))));
}

void append_title(std::string& out, char32_t c) {
  if (const SpecialUpper* special = find_special_upper(c)) {
    out += special->title;
    return;
  }
  append_utf8(out, static_cast<char32_t>(utf8proc_totitle(static_cast<int>(c))));
}

std::string to_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t pos = 0; pos < text.size();) {
    const std::size_t start = pos;
    const char32_t c = next_code_point(text, pos);
    if (c == 0x03A3 && is_final_sigma(text, start, pos)) {
      append_utf8(out, 0x03C2);
    } else {
      append_lower(out, c);
    }
  }
  return out;
}

std::string to_upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t pos = 0; pos < text.size();) {
    append_upper(out, next_code_point(text, pos));
  }
  return out;
}

std::string_view normalize(std::string_view text, NormalizationForm form, std::string& buffer) {
  if (form == NormalizationForm::kNfc) {
    return normalize_nfc(text, buffer);
  }
  if (ascii_prefix(text) == text.size()) {
    return text;
  }
  buffer.clear();
  append_normalized(text, form, buffer);
  return buffer;
}

}  // namespace fastfd::text
