// Encoding speed of FastFD's tokenizer on one thread; tokenizer_compare.py runs it beside Hugging
// Face `tokenizers`.
//
//   tokenizer_bench MODEL_DIR TEXT_FILE
//
// The file holds documents separated by NUL bytes. Prints one line a round, when a line comes in on
// standard input ("go"), so that a script can interleave it with another program:
//   CPU_SECONDS NUM_BYTES NUM_TOKENS

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "fastfd/text/tokenizer.h"

namespace {

std::vector<std::string> read_documents(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::vector<std::string> documents;
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t end = std::min(all.find('\0', begin), all.size());
    documents.push_back(all.substr(begin, end - begin));
    begin = end + 1;
  }
  return documents;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: tokenizer_bench MODEL_DIR TEXT_FILE\n");
    return 2;
  }
  try {
    const auto tokenizer = fastfd::Tokenizer::from_folder(argv[1]);
    const auto documents = read_documents(argv[2]);
    std::string line;
    while (std::getline(std::cin, line)) {
      std::size_t num_bytes = 0;
      std::size_t num_tokens = 0;
      const std::clock_t start = std::clock();
      for (const std::string& document : documents) {
        num_bytes += document.size();
        num_tokens += tokenizer.encode(document).size();
      }
      const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
      fmt::print("{:.6f} {} {}\n", seconds, num_bytes, num_tokens);
      std::fflush(stdout);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "tokenizer_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
