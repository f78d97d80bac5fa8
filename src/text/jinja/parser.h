#pragma once

#include <string_view>

#include "text/jinja/ast.h"

namespace fastfd::jinja {

/// Parses a chat template. Throws ChatTemplateError (kSyntax) with the line.
Template parse_template(std::string_view source);

}  // namespace fastfd::jinja
