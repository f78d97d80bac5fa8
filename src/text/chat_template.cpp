#include "fastfd/text/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "fastfd/core/model_files.h"
#include "text/jinja/failure.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"
#include "text/special_tokens.h"
#include "text/text_files.h"
#include "text/utf8.h"

namespace fastfd {

using nlohmann::ordered_json;

ChatTemplateError::ChatTemplateError(Kind kind, int line, const std::string& reason)
    : TextError(fmt::format("chat template, line {}: {}", line, reason)),
      kind_(kind),
      line_(line),
      reason_(reason) {}

struct ChatTemplate::Impl {
  std::map<std::string, jinja::Template> templates;  // by name; "default" unless the model names it
  std::vector<std::string> sources;
  Options options;
};

namespace {

jinja::Value to_value(const ordered_json& json, std::uint32_t depth) {
  if (depth > jinja::kMaxValueDepth) {
    jinja::fail_limit("messages are nested too deep");
  }
  switch (json.type()) {
    case ordered_json::value_t::boolean:
      return json.get<bool>();
    case ordered_json::value_t::number_integer:
      return json.get<std::int64_t>();
    case ordered_json::value_t::number_unsigned: {
      const auto value = json.get<std::uint64_t>();
      if (value > static_cast<std::uint64_t>(INT64_MAX)) {
        jinja::fail(fmt::format("integer {} does not fit 64 bits", value));
      }
      return static_cast<std::int64_t>(value);
    }
    case ordered_json::value_t::number_float:
      return json.get<double>();
    case ordered_json::value_t::string: {
      const auto& text = json.get_ref<const std::string&>();
      return text::is_valid_utf8(text) ? text : text::replace_invalid_utf8(text);
    }
    case ordered_json::value_t::array: {
      std::vector<jinja::Value> items;
      items.reserve(json.size());
      for (const auto& item : json) {
        items.push_back(to_value(item, depth + 1));
      }
      return jinja::make_list(std::move(items));
    }
    case ordered_json::value_t::object: {
      std::vector<std::pair<jinja::Value, jinja::Value>> items;
      for (const auto& [key, item] : json.items()) {
        items.emplace_back(jinja::Value(key), to_value(item, depth + 1));
      }
      return jinja::make_dict(std::move(items));
    }
    default:
      return {};
  }
}

using NamedSources = std::vector<std::pair<std::string, std::string>>;

/// chat_template of tokenizer_config.json.
NamedSources sources_of_config(const std::filesystem::path& path, const ordered_json& config) {
  const auto it = config.find("chat_template");
  if (it == config.end() || it->is_null()) {
    return {};
  }
  if (it->is_string()) {
    return {{"default", it->get<std::string>()}};
  }
  NamedSources sources;
  try {
    for (const auto& entry : *it) {
      sources.emplace_back(entry.at("name").get<std::string>(),
                           entry.at("template").get<std::string>());
    }
  } catch (const nlohmann::json::exception&) {
    throw TextError(
        fmt::format("{}: chat_template must be a string or a list of objects with "
                    "name and template",
                    path.string()));
  }
  return sources;
}

NamedSources sources_of_folder(const std::filesystem::path& folder, const ordered_json& config) {
  const auto jinja_path = folder / "chat_template.jinja";
  if (!has_entry(jinja_path)) {
    return sources_of_config(folder / "tokenizer_config.json", config);
  }
  NamedSources sources{{"default", text::read_text_file(jinja_path)}};
  const auto others = folder / "additional_chat_templates";
  if (std::filesystem::is_directory(others)) {
    for (const auto& entry : std::filesystem::directory_iterator(others)) {
      if (entry.path().extension() == ".jinja") {
        sources.emplace_back(entry.path().stem().string(), text::read_text_file(entry.path()));
      }
    }
  }
  return sources;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source) : ChatTemplate(source, Options()) {}

ChatTemplate::ChatTemplate(std::string_view source, Options options) {
  auto impl = std::make_unique<Impl>();
  impl->templates.emplace("default", jinja::parse_template(source));
  impl->sources.emplace_back(source);
  impl->options = std::move(options);
  impl_ = std::move(impl);
}

ChatTemplate::ChatTemplate(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

std::unique_ptr<ChatTemplate> ChatTemplate::from_folder(const std::filesystem::path& folder) {
  return from_folder(folder, Options());
}

std::unique_ptr<ChatTemplate> ChatTemplate::from_folder(const std::filesystem::path& folder,
                                                        Options options) {
  const auto config_path = folder / "tokenizer_config.json";
  const ordered_json config =
      has_entry(config_path) ? text::read_json_file(config_path) : ordered_json::object();
  const NamedSources sources = sources_of_folder(folder, config);
  if (sources.empty()) {
    return nullptr;
  }
  auto impl = std::make_unique<Impl>();
  for (const auto& [name, source] : sources) {
    try {
      impl->templates.insert_or_assign(name, jinja::parse_template(source));
      impl->sources.push_back(source);
    } catch (const ChatTemplateError& error) {
      throw ChatTemplateError(
          error.kind(), error.line(),
          fmt::format("{} (template \"{}\" of {})", error.reason(), name, folder.string()));
    }
  }
  if (!impl->templates.contains("default") && impl->templates.size() > 1) {
    throw TextError(
        fmt::format("{}: none of the chat templates is named \"default\"", folder.string()));
  }
  // What the caller names wins over the model's own.
  options.special_tokens.merge(text::special_tokens_of(config));
  impl->options = std::move(options);
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::move(impl)));
}

bool ChatTemplate::mentions(std::string_view text) const {
  return std::any_of(
      impl_->sources.begin(), impl_->sources.end(),
      [text](const std::string& source) { return source.find(text) != std::string::npos; });
}

std::string ChatTemplate::render(const ordered_json& messages, bool add_generation_prompt) const {
  return render(messages, nullptr, add_generation_prompt, ordered_json::object());
}

std::string ChatTemplate::render(const ordered_json& messages, const ordered_json& tools,
                                 bool add_generation_prompt, const ordered_json& variables) const {
  const auto with_tools = impl_->templates.find("tool_use");
  const auto by_default = impl_->templates.find("default");
  const bool use_tools = with_tools != impl_->templates.end() && !tools.is_null();
  const jinja::Template& code = use_tools ? with_tools->second
                                : by_default != impl_->templates.end()
                                    ? by_default->second
                                    : impl_->templates.begin()->second;
  std::vector<std::pair<std::string, jinja::Value>> context;
  try {
    context.emplace_back("messages", to_value(messages, 0));
    context.emplace_back("tools", to_value(tools, 0));
    context.emplace_back("documents", jinja::Value());
    context.emplace_back("add_generation_prompt", add_generation_prompt);
    for (const auto& [name, token] : impl_->options.special_tokens) {
      context.emplace_back(name, jinja::Value(token));
    }
    if (!variables.is_object() && !variables.is_null()) {
      jinja::fail("template variables must be an object");
    }
    for (const auto& [name, value] : variables.items()) {
      context.emplace_back(name, to_value(value, 0));  // later ones replace earlier ones
    }
  } catch (const jinja::Failure& failure) {
    throw ChatTemplateError(failure.kind(), 1, failure.what());
  }
  return jinja::Interpreter(code, impl_->options.limits, impl_->options.clock).render(context);
}

}  // namespace fastfd
