#include "fastfd/text/stop_matcher.h"

#include <map>
#include <utility>

namespace fastfd {

struct StopStringMatcher::Node {
  std::map<unsigned char, std::uint32_t> children;
  std::uint32_t fail = 0;   ///< the longest proper suffix that is a node
  std::uint32_t depth = 0;  ///< bytes from the root
  /// Longest stop string that is a suffix of this node: its length, 0 for none, and its index.
  std::uint32_t match_bytes = 0;
  std::size_t match_index = 0;
};

struct StopStringMatcher::Automaton {
  std::vector<Node> nodes = std::vector<Node>(1);

  void add(std::string_view stop, std::size_t index) {
    std::uint32_t node = 0;
    for (const char c : stop) {
      const auto fresh = static_cast<std::uint32_t>(nodes.size());
      const auto [it, inserted] =
          nodes[node].children.try_emplace(static_cast<unsigned char>(c), fresh);
      const std::uint32_t next = it->second;
      if (inserted) {
        const std::uint32_t depth = nodes[node].depth + 1;
        nodes.emplace_back().depth = depth;
      }
      node = next;
    }
    if (nodes[node].match_bytes == 0) {
      nodes[node].match_bytes = nodes[node].depth;
      nodes[node].match_index = index;
    }
  }

  /// Breadth first, so that a node's suffixes are complete before it.
  void link() {
    std::vector<std::uint32_t> queue{0};
    for (std::size_t i = 0; i < queue.size(); ++i) {
      const std::uint32_t node = queue[i];
      for (const auto& [byte, next] : nodes[node].children) {
        queue.push_back(next);
        Node& child = nodes[next];
        child.fail = node == 0 ? 0 : step(nodes[node].fail, byte);
        if (child.match_bytes == 0) {
          child.match_bytes = nodes[child.fail].match_bytes;
          child.match_index = nodes[child.fail].match_index;
        }
      }
    }
  }

  std::uint32_t step(std::uint32_t node, unsigned char byte) const {
    for (;;) {
      const auto it = nodes[node].children.find(byte);
      if (it != nodes[node].children.end()) {
        return it->second;
      }
      if (node == 0) {
        return 0;
      }
      node = nodes[node].fail;
    }
  }
};

StopStringMatcher::StopStringMatcher(const std::vector<std::string>& stop_strings) {
  auto automaton = std::make_shared<Automaton>();
  for (std::size_t i = 0; i < stop_strings.size(); ++i) {
    if (!stop_strings[i].empty()) {
      automaton->add(stop_strings[i], i);
    }
  }
  automaton->link();
  automaton_ = std::move(automaton);
}

StopStringMatcher::Output StopStringMatcher::push(std::string_view piece) {
  Output output;
  if (stopped_) {
    return output;
  }
  held_ += piece;
  std::size_t end = held_.size() - piece.size();
  for (const char c : piece) {
    ++end;
    state_ = automaton_->step(state_, static_cast<unsigned char>(c));
    const Node& node = automaton_->nodes[state_];
    if (node.match_bytes > 0) {
      output.text = held_.substr(0, end - node.match_bytes);
      output.stop = node.match_index;
      held_.clear();
      stopped_ = true;
      return output;
    }
  }
  const std::size_t num_emitted = held_.size() - automaton_->nodes[state_].depth;
  output.text = held_.substr(0, num_emitted);
  held_.erase(0, num_emitted);
  return output;
}

std::string StopStringMatcher::flush() {
  state_ = 0;
  return std::exchange(held_, {});
}

}  // namespace fastfd
