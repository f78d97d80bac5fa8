#include "cli/model_options.h"

#include "cli/option_values.h"

namespace fastfd::cli {

void ModelArguments::apply_to(config::ModelConfig& model) const {
  model.load_format = load_format.value_or(model.load_format);
  model.num_layers = num_layers.value_or(model.num_layers);
  model.reasoning_parser = reasoning_parser.value_or(model.reasoning_parser);
}

void add_model_options(CLI::App& command, ModelArguments& arguments) {
  command
      .add_option("--load-format", arguments.load_format,
                  "auto: the checkpoint; dummy: random weights in the shapes of config.json, "
                  "instead of model.load_format")
      ->type_name("FORMAT")
      ->transform(one_of<LoadFormat>({{"auto", LoadFormat::kAuto}, {"dummy", LoadFormat::kDummy}}));
  command
      .add_option("--num-layers", arguments.num_layers,
                  "Run the model's first so many layers only, to measure; 0: all")
      ->check(whole_number(0, 1024));
}

void add_reasoning_option(CLI::App& command, ModelArguments& arguments) {
  using config::ReasoningParser;
  command
      .add_option("--reasoning-parser", arguments.reasoning_parser,
                  "How answers of models that think aloud are split into reasoning_content and "
                  "content, instead of model.reasoning_parser: auto, none, qwen3, deepseek_r1, "
                  "minimax_m2 or openai_gptoss")
      ->type_name("PARSER")
      ->transform(one_of<ReasoningParser>({{"auto", ReasoningParser::kAuto},
                                           {"none", ReasoningParser::kNone},
                                           {"qwen3", ReasoningParser::kQwen3},
                                           {"deepseek_r1", ReasoningParser::kDeepSeekR1},
                                           {"minimax_m2", ReasoningParser::kMinimaxM2},
                                           {"openai_gptoss", ReasoningParser::kGptOss}}));
}

}  // namespace fastfd::cli
