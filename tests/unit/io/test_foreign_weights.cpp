// SPDX-License-Identifier: Apache-2.0
// Paths with a format that zea does not read: each is recognized, and the remedy named.
#include <gtest/gtest.h>

#include <map>

#include "io/model_source.hpp"
#include "io/open_source.hpp"
#include "io/peft.hpp"
#include "io/safetensors.hpp"
#include "support/files.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_foreign_weights {
namespace {

namespace fs = std::filesystem;

const std::string kLfs =
    "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9976570304\n";
const std::string kConvert = "from_pretrained() of transformers and write it with save_pretrained";
const std::string kHtml = "<!DOCTYPE html>\n<html><body>Sign in</body></html>";
const std::string kTokenizer = R"({"model": {"type": "BPE", "vocab": {}, "merges": []}})";

class ForeignWeights : public ::testing::Test {
 protected:
  /// A fresh directory of these files.
  std::string directory_of(const std::map<std::string, std::string>& files) {
    const std::string path = directory_ / ("model-" + std::to_string(count_++));
    fs::create_directories(path);
    for (const auto& [name, text] : files) {
      fs::create_directories(fs::path(path + "/" + name).parent_path());
      write_bytes(path + "/" + name, text);
    }
    return path;
  }
  static std::string refusal(const std::string& path) {
    return error_of([&] { ModelSource(open_weights(path), ""); });
  }

  TemporaryDirectory directory_;
  int count_ = 0;
};

TEST_F(ForeignWeights, DirectoriesOfOthersNameTheRemedy) {
  const std::string config = testing::tiny_llava_config();
  const std::string adapter = R"({"peft_type": "LORA", "base_model_name_or_path": "org/base"})";
  const struct {
    std::map<std::string, std::string> files;
    std::string remedy;
  } cases[] = {
      {{{"config.json", config}, {"pytorch_model.bin", "PK"}}, kConvert},
      {{{"config.json", config},
        {"pytorch_model.bin.index.json", "{}"},
        {"pytorch_model-00001-of-00002.bin", "PK"}},
       kConvert},
      {{{"params.json", "{}"}, {"consolidated.00.pth", "PK"}}, kConvert},
      {{{"config.json", config}, {"model.pt", "PK"}}, kConvert},
      {{{"model.gguf", "GGUF"}}, "llama.cpp"},
      {{{"config.json", config}, {"flax_model.msgpack", "x"}}, "Flax"},
      {{{"config.json", config}, {"tf_model.h5", "x"}}, "TensorFlow"},
      {{{"config.json", R"({"model_type": "llava_llama"})"}, {"pytorch_model.bin", "PK"}},
       "llava-hf/"},
      {{{"adapter_config.json", adapter}, {"adapter_model.safetensors", "x"}},
       "name it in model.llm.lora.weights, and the model that it was trained on (org/base)"},
      {{{"adapter_config.json", "{}"}, {"adapter_model.bin", "x"}}, "model.llm.lora.weights"},
      {{{"config.json", R"({"model_type": "llava_next"})"}, {"pytorch_model.bin", "PK"}}, kConvert},
      {{{"config.json", config}, {"model-00001-of-00002.safetensors", "x"}},
       "download model.safetensors.index.json as well"},
      {{{"params.json", "{}"}, {"consolidated.safetensors", "x"}}, "Mistral's own form"},
      {{{"config.json", config}}, "huggingface-cli download"},
      {{{"config.json", config}, {"training_args.bin", "x"}, {"optimizer.pt", "x"}},
       "holds a config.json and no weights"},
      {{{"tokenizer.model", "x"}}, "holds a tokenizer and neither config.json nor weights"},
      {{{"snapshots/0123/config.json", config}, {"refs/main", "0123"}}, "/snapshots/0123"},
      {{{"notes.txt", "x"}}, "holds no complete checkpoint"},
      {{{"config.json", config}, {"model.safetensors", kLfs}}, "git lfs pull"},
      {{{"config.json", kLfs}, {"model.safetensors", kLfs}}, "git lfs pull"},
      {{{"config.json", config}, {"model.safetensors.index.json", kLfs}}, "git lfs pull"},
      {{{"config.json", config}, {"model.safetensors", kHtml}}, "huggingface-cli login"},
      {{{"config.json", "\n" + kHtml}, {"model.safetensors", "x"}}, "huggingface-cli login"},
      {{{"config.json", config}, {"model.safetensors", std::string("PK\x03\x04", 4) + "archive"}},
       "was written by torch.save"},
      {{{"config.json", config}, {"model.safetensors", "GGUF and more"}}, "llama.cpp"},
      {{{"config.json", config}, {"model.safetensors", "\x89HDF\r\n\x1a\n and more"}},
       "needs no import"},
  };
  for (const auto& [files, remedy] : cases) {
    const std::string path = directory_of(files), found = refusal(path);
    EXPECT_TRUE(contains(found, remedy) && contains(found, path)) << remedy << "\n" << found;
    EXPECT_TRUE(contains(error_of([&] { open_safetensors(path); }), path)) << remedy;
  }
}

TEST_F(ForeignWeights, FilesOfOthersNameTheRemedy) {
  const std::string path = directory_of({{"pytorch_model.bin", "PK"},
                                         {"a.pth", "x"},
                                         {"a.gguf", "GGUF"},
                                         {"tokenizer.model", "x"},
                                         {"config.json", "{}"},
                                         {"a.safetensors", kLfs},
                                         {"tf_model.h5", "x"},
                                         {"w.h5", kLfs}});
  for (const auto& [name, remedy] : {std::pair("pytorch_model.bin", kConvert),
                                     {"a.pth", kConvert},
                                     {"a.gguf", "llama.cpp"},
                                     {"tokenizer.model", "is a tokenizer, not weights"},
                                     {"config.json", "a config.json in model.config"},
                                     {"a.safetensors", "git lfs pull"},
                                     {"tf_model.h5", "TensorFlow"},
                                     {"w.h5", "git lfs pull"}}) {
    const std::string found = refusal(path + "/" + name);
    EXPECT_TRUE(contains(found, remedy) && contains(found, name)) << found;
  }
}

TEST_F(ForeignWeights, WhatIsNoAdapterNamesTheRemedy) {
  const ModelSpec model = make_model_spec(testing::tiny_llava_config());
  const auto found = [&](const std::string& path) {
    return error_of([&] { open_peft_adapter(path, model, "llm", {"llm"}); });
  };
  const std::string pickled =
      directory_of({{"adapter_config.json", "{}"}, {"adapter_model.bin", "x"}});
  EXPECT_TRUE(contains(found(pickled), "load it with PEFT"));
  const std::string whole = directory_of({{"config.json", "{}"}, {"model.safetensors", "x"}});
  EXPECT_TRUE(contains(found(whole), "which belongs in model.weights"));
  EXPECT_TRUE(contains(found("org/lora"), "huggingface-cli download org/lora"));
  EXPECT_TRUE(contains(found("~/lora"), "write the whole path"));
  const std::string lfs =
      directory_of({{"adapter_config.json", "{}"}, {"adapter_model.safetensors", kLfs}});
  EXPECT_TRUE(contains(found(lfs), "git lfs pull"));
  EXPECT_TRUE(contains(refusal(lfs + "/adapter_model.safetensors"), "model.llm.lora.weights"));
}

TEST_F(ForeignWeights, NamesOnTheHubAreToBeDownloaded) {
  EXPECT_TRUE(contains(refusal("llava-hf/llava-1.5-7b-hf"),
                       "huggingface-cli download llava-hf/llava-1.5-7b-hf --local-dir "
                       "llava-1.5-7b-hf"));
  for (const char* path : {"nowhere.h5", "./a/b", "/a/b", "runs/w.h5", "a/b/c"}) {
    EXPECT_TRUE(contains(refusal(path), std::string(path) + ": does not exist")) << path;
    EXPECT_FALSE(contains(refusal(path), "huggingface")) << path;
  }
}

/// One that is a bug of zea's is none of these.
TEST_F(ForeignWeights, LinksThatLeadNowhereAreRefused) {
  for (const char* name :
       {"config.json", "model.safetensors", "model.safetensors.index.json",
        "preprocessor_config.json", "processor_config.json", "generation_config.json"}) {
    for (const char* target : {name, "gone"}) {
      const std::string path = directory_of({{"config.json", testing::tiny_llava_config()}});
      fs::remove(path + "/" + name);
      fs::create_symlink(target, path + "/" + name);
      if (std::string(name).find("config.json") != std::string::npos)
        write_bytes(path + "/model.safetensors", "0123456789");
      const std::string found = refusal(path);
      EXPECT_TRUE(contains(found, path + "/" + name + ": cannot open: ")) << found;
    }
  }
  const std::string loop = directory_ / "loop";
  fs::create_symlink(loop, loop);
  EXPECT_TRUE(contains(refusal(loop), "loop: cannot open: "));
}

TEST_F(ForeignWeights, TokenizerFilesOfLinksThatLeadNowhereAreRefused) {
  const std::string path = directory_of({{"config.json", testing::tiny_llava_config()}});
  fs::create_symlink("tokenizer.json", path + "/tokenizer.json");
  const auto source = open_for_plan(path);
  ASSERT_EQ(source->companions(), std::vector<std::string>{"tokenizer.json"});
  EXPECT_TRUE(contains(error_of([&] { source->companion("tokenizer.json"); }), "cannot open"));
}

TEST_F(ForeignWeights, AConfigAloneIsEnoughForAPlan) {
  const std::string path = directory_of({{"config.json", testing::tiny_llava_config()},
                                         {"tokenizer.json", kTokenizer},
                                         {"training_args.bin", "x"}});
  const ModelSource source(open_for_plan(path), "");
  EXPECT_FALSE(source.has_weights());
  EXPECT_EQ(source.companions(), std::vector<std::string>{"tokenizer.json"});
  EXPECT_TRUE(contains(source.note(), "holds a config.json and no weights"));
  EXPECT_FALSE(source.tensors().empty());
  EXPECT_TRUE(contains(refusal(path), "holds a config.json and no weights"));
  for (const char* name : {"pytorch_model.bin", "model.safetensors", "adapter_config.json"}) {
    write_bytes(path + "/" + name, "{}");
    EXPECT_NE(error_of([&] { open_for_plan(path); }), "") << name;
    fs::remove(path + "/" + name);
  }
}

}  // namespace
}  // namespace zea::test_foreign_weights
