#include "gateway/answer_reader.h"

#include <string>

#include "gateway/channel_reader.h"

namespace fastfd::gateway {
namespace {

using Piece = ReasoningSplitter::Piece;

void append(Piece& to, const Piece& piece) {
  to.reasoning += piece.reasoning;
  to.content += piece.content;
}

/// Tags, or none, in the text.
class TaggedAnswer final : public AnswerReader {
 public:
  TaggedAnswer(const TextService& text, TextStreamOptions options, AnswerStart start) {
    options.shows_reasoning_tags = start != AnswerStart::kContent;
    stream_ = text.new_stream(options);
    if (options.shows_reasoning_tags) {
      splitter_.emplace(start);
    }
  }

  bool push(TokenId token, bool check_stops, Piece& out) override {
    std::string text;
    const bool stopped = stream_->push(token, check_stops, text);
    split(text, stopped, out);
    return stopped;
  }

  void finish(Piece& out) override {
    std::string text;
    stream_->finish(text);
    split(text, true, out);
  }

 private:
  void split(const std::string& text, bool is_last, Piece& out) {
    if (!splitter_) {
      out.content += text;
      return;
    }
    append(out, splitter_->push(text));
    if (is_last) {
      append(out, splitter_->finish());
    }
  }

  std::unique_ptr<TextStream> stream_;
  std::optional<ReasoningSplitter> splitter_;
};

/// Messages in channels. Each has a text stream of its own: neither half a character nor the
/// beginning of a stop string goes on in the next.
class ChanneledAnswer final : public AnswerReader {
 public:
  ChanneledAnswer(const TextService& text, const TextStreamOptions& options,
                  const ChannelTokens& channels)
      : text_(text),
        channels_(channels, text, options.prompt),
        stops_(options.stop_strings),
        stream_(text.new_stream(options)) {}

  bool push(TokenId token, bool check_stops, Piece& out) override {
    const bool was_reasoning = channels_.is_reasoning();
    ChannelReader::Step step = channels_.push(token);
    if (step.ends_text) {
      stream_->finish(was_reasoning ? out.reasoning : out.content);
      stream_ = text_.new_stream({stops_, {}, false});
    }
    out.content += step.call_header;
    return step.is_text && stream_->push(token, check_stops, current(out));
  }

  void finish(Piece& out) override { stream_->finish(current(out)); }

 private:
  std::string& current(Piece& out) const {
    return channels_.is_reasoning() ? out.reasoning : out.content;
  }

  const TextService& text_;
  ChannelReader channels_;
  std::vector<std::string> stops_;
  std::unique_ptr<TextStream> stream_;
};

}  // namespace

std::unique_ptr<AnswerReader> make_answer_reader(const TextService& text,
                                                 const TextStreamOptions& options,
                                                 const AnswerForm& form) {
  if (form.channels) {
    return std::make_unique<ChanneledAnswer>(text, options, *form.channels);
  }
  return std::make_unique<TaggedAnswer>(text, options, form.start);
}

}  // namespace fastfd::gateway
