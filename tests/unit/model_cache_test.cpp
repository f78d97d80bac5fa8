#include "config/model_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

#include "fastfd/config/cluster_config.h"

namespace fastfd::config {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Sets a variable for a test's time; nullptr removes it.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) {
      old_ = old;
    }
    value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
  }
  ~ScopedVariable() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

TEST(HubCacheFolderTest, TheNearestVariableDecides) {
  const ScopedVariable home("HOME", "/h");
  const ScopedVariable xdg("XDG_CACHE_HOME", nullptr);
  const ScopedVariable hf_home("HF_HOME", nullptr);
  const ScopedVariable old_cache("HUGGINGFACE_HUB_CACHE", nullptr);
  const ScopedVariable cache("HF_HUB_CACHE", "");
  EXPECT_EQ(hub_cache_folder(), "/h/.cache/huggingface/hub");
  {
    const ScopedVariable other("XDG_CACHE_HOME", "/x");
    EXPECT_EQ(hub_cache_folder(), "/x/huggingface/hub");
    const ScopedVariable nearer("HF_HOME", "~/hf");
    EXPECT_EQ(hub_cache_folder(), "/h/hf/hub");
    const ScopedVariable home_itself("HF_HOME", "~");
    EXPECT_EQ(hub_cache_folder(), "/h/hub");
    const ScopedVariable nearest("HF_HUB_CACHE", "/cache");
    EXPECT_EQ(hub_cache_folder(), "/cache");
  }
  const ScopedVariable no_home("HOME", nullptr);
  EXPECT_EQ(hub_cache_folder(), "");
}

TEST(ModelIdTest, IsTwoNames) {
  for (const char* id : {"Qwen/Qwen3-30B-A3B", "a/b", "MiniMaxAI/MiniMax-M2.1", "org_1/x_y"}) {
    EXPECT_TRUE(is_model_id(id)) << id;
  }
  for (const char* path : {"", "model", "/a/b", "a/", "/a", "a/b/c", "../a", "./a", "a/..", "a b/c",
                           "a/b ", "~/a", "-a/b"}) {
    EXPECT_FALSE(is_model_id(path)) << path;
  }
}

class ModelCacheTest : public ::testing::Test {
 protected:
  ModelCacheTest()
      : folder_(fs::temp_directory_path() / ("fastfd_cache_" + std::to_string(::getpid()))),
        variable_("HF_HUB_CACHE", folder_.c_str()),
        repository_(folder_ / "models--Test--Atlas-1"),
        snapshot_(repository_ / "snapshots" / "abc123") {
    fs::create_directories(snapshot_);
    write(repository_ / "refs" / "main", "abc123");
    const fs::path model = fs::path(FASTFD_SOURCE_DIR) / "models" / "atlas-moe";
    for (const char* name : {"config.json", "model.safetensors"}) {
      fs::create_symlink(model / name, snapshot_ / name);
    }
  }
  ~ModelCacheTest() override { fs::remove_all(folder_); }

  static void write(const fs::path& file, const std::string& text) {
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  static ClusterConfig load(const std::string& more = "") {
    return parse_cluster_text("model: {path: Test/Atlas-1" + more + "}", "test.yaml", {4, true});
  }
  static std::string error(const std::string& more = "") {
    try {
      load(more);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }

  fs::path folder_;
  ScopedVariable variable_;
  fs::path repository_;
  fs::path snapshot_;
};

TEST_F(ModelCacheTest, AnIdIsTheSnapshotOfItsMainRevision) {
  const ClusterConfig config = load();
  EXPECT_EQ(config.model.path, snapshot_);
  EXPECT_EQ(config.model.served_name, "Test/Atlas-1");
  EXPECT_EQ(config.model.max_model_len, 2048U);
  EXPECT_EQ(parse_cluster_text(to_yaml(config), "", {4, true}).model, config.model);
  EXPECT_EQ(load(", served_name: mine").model.served_name, "mine");
  const ClusterConfig served = default_cluster("Test/Atlas-1", {4, true});
  EXPECT_EQ(served.model.path, snapshot_);
  EXPECT_EQ(served.model.served_name, "Test/Atlas-1");
}

TEST_F(ModelCacheTest, AFolderOfTheOrganisationsNameHidesNoCachedModel) {
  const fs::path before = fs::current_path();
  fs::create_directories(folder_ / "work" / "Test");
  fs::current_path(folder_ / "work");
  const std::string cached = error();
  fs::remove_all(repository_);
  const std::string missing = error();
  fs::current_path(before);
  EXPECT_EQ(cached, "no error");
  EXPECT_THAT(missing, HasSubstr("no folder Test/Atlas-1; give the path of a Hugging Face model"));
}

TEST_F(ModelCacheTest, AModelThatIsNotThereComesWithItsDownloadCommand) {
  const auto said = [](const char* id) {
    try {
      default_cluster(id, {4, true});
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(said("Test/Other"),
              AllOf(HasSubstr("no folder Test/Other, and the Hugging Face cache " +
                              folder_.string() + " has no such model"),
                    HasSubstr("`hf download Test/Other`")));
  write(repository_ / "refs" / "main", "../../..");
  EXPECT_THAT(error(), AllOf(HasSubstr("test.yaml:1: model.path: Test/Atlas-1 is in the Hugging"),
                             HasSubstr("`hf download Test/Atlas-1`")));
  write(repository_ / "refs" / "main", "def456");
  EXPECT_THAT(error(), HasSubstr("not as its main revision"));
  fs::remove(repository_ / "refs" / "main");
  EXPECT_THAT(error(), HasSubstr("not as its main revision"));
  ASSERT_EQ(::mkfifo((repository_ / "refs" / "main").c_str(), 0600), 0);
  EXPECT_THAT(error(), HasSubstr("not as its main revision"));
}

TEST_F(ModelCacheTest, IncompleteSnapshotsAreNamedWithTheMissingFile) {
  const auto missing = [this](const char* file) {
    return AllOf(HasSubstr("Test/Atlas-1 is incomplete in the Hugging Face cache: " +
                           (snapshot_ / file).string() + " is missing"),
                 HasSubstr("finish with `hf download Test/Atlas-1`"));
  };
  fs::remove(snapshot_ / "model.safetensors");
  EXPECT_THAT(error(), missing("model.safetensors"));
  EXPECT_EQ(error(", load_format: dummy"), "no error");
  // A link whose blob is not there yet.
  fs::create_symlink("../../blobs/1", snapshot_ / "model.safetensors");
  EXPECT_THAT(error(), missing("model.safetensors"));
  write(snapshot_ / "model.safetensors.index.json",
        R"({"weight_map": {"a": "model-00001-of-00002.safetensors",
                           "b": "model-00002-of-00002.safetensors"}})");
  write(snapshot_ / "model-00001-of-00002.safetensors", "");
  EXPECT_THAT(error(), missing("model-00002-of-00002.safetensors"));
  write(snapshot_ / "model-00002-of-00002.safetensors", "");
  EXPECT_EQ(error(), "no error");
  for (const char* optional : {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
                               "chat_template.jinja"}) {
    fs::create_symlink("../../blobs/2", snapshot_ / optional);
    EXPECT_THAT(error(), missing(optional));
    fs::remove(snapshot_ / optional);
  }
  fs::remove(snapshot_ / "config.json");
  EXPECT_THAT(error(", load_format: dummy"), missing("config.json"));
}

TEST(ReasoningParserTest, IsNamedAsInVllm) {
  const std::string path = (fs::path(FASTFD_SOURCE_DIR) / "models" / "atlas-moe").string();
  const auto parse = [&path](const std::string& name) {
    return parse_cluster_text("model: {path: " + path + ", reasoning_parser: " + name + "}", "t",
                              {4, true});
  };
  for (const auto parser :
       {ReasoningParser::kAuto, ReasoningParser::kNone, ReasoningParser::kQwen3,
        ReasoningParser::kDeepSeekR1, ReasoningParser::kMinimaxM2, ReasoningParser::kGptOss}) {
    const ClusterConfig config = parse(to_string(parser));
    EXPECT_EQ(config.model.reasoning_parser, parser);
    EXPECT_EQ(parse_cluster_text(to_yaml(config), "", {4, true}).model, config.model);
  }
  try {
    parse("granite");
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("model.reasoning_parser"), HasSubstr("granite"),
                                    HasSubstr("deepseek_r1")));
  }
}

}  // namespace
}  // namespace fastfd::config
