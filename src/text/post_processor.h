#pragma once

#include <vector>

#include "fastfd/core/ids.h"
#include "text/json_fields.h"

namespace fastfd::text {

/// What the `post_processor` of tokenizer.json puts around a text.
struct AddedAround {
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
};

/// Throws TextError naming a type that is not supported.
AddedAround read_post_processor(const JsonFields& json);

}  // namespace fastfd::text
