// SPDX-License-Identifier: Apache-2.0
// A data set that was packed with another tokenizer than the model's is found out by the texts of
// its tokens.
#include "data/same_tokens.hpp"

#include "support/dataset_file.hpp"

namespace zea::test_same_tokens {
namespace {

using SameTokensFile = testing::DatasetFile;

/// The letters of a byte-level BPE for the file's tokens 0 to 6: " a" and so on.
ModelTokens model_tokens() {
  return {.where = "tokenizer.json",
          .texts = {{0, "\u0120a"},
                    {1, "<b> "},
                    {2, "bc"},
                    {3, "\u0120"},
                    {4, "<0x0A>"},
                    {5, "\u2581\u00e9"},
                    {6, "\u00c3\u00a9"}}};
}

testing::Arrays arrays() {
  const std::vector<std::string> texts{" a", "", "bc", " ", "\n", " \u00e9", "\u00e9", ""};
  testing::Arrays a;
  a.token_byte_offsets = {0};
  a.token_byte_values.clear();
  for (const std::string& text : texts) {
    a.token_byte_values.insert(a.token_byte_values.end(), text.begin(), text.end());
    a.token_byte_offsets.push_back(std::ssize(a.token_byte_values));
  }
  a.sample_name_offsets = {0, 0, 4, 4};
  a.sample_names = "t:17";
  return a;
}

std::string told(const std::string& path, const ModelTokens& model) {
  return compare_tokens(*open_dataset(path), model);
}

std::string refusal(const std::string& path, const ModelTokens& model) {
  try {
    return "not refused: " + told(path, model);
  } catch (const DataError& error) {
    return error.what();
  }
}

TEST_F(SameTokensFile, TheSameInAnyLettersIsNotTold) {
  EXPECT_EQ(told(write(arrays()), model_tokens()), "");
  EXPECT_EQ(told(write(arrays()), {}), "") << "a model without a tokenizer";
}

TEST_F(SameTokensFile, ATokenOfAnotherTextIsRefusedWhereASampleHoldsIt) {
  ModelTokens model = model_tokens();
  model.texts[0] = "b";
  model.texts[3] = "\u0120the";
  const std::string path = write(arrays());
  EXPECT_EQ(refusal(path, model),
            path +
                " was packed with another tokenizer than the model's (tokenizer.json): 2 of 7 "
                "tokens differ, the first is 0, \" a\" in the data set and \"b\" in the model; "
                "sample 1 (t:17) holds token 3, \" \" in the data set and \"\u0120the\" in the "
                "model. Pack the data with the model's tokenizer (jobs/pack.py --model), or "
                "name the model that it was packed for as model.weights");
  model = model_tokens();
  model.texts[1] = "</s>";  // a special token
  EXPECT_NE(refusal(path, model).find("sample 0 holds token 1, \"<b> \" in the data set"),
            std::string::npos);
}

TEST_F(SameTokensFile, ATokenThatNoSampleHoldsIsTold) {
  ModelTokens model = model_tokens();
  model.texts[0] = model.texts[6] = "b";
  EXPECT_NE(told(write(arrays()), model)
                .find("2 of 7 tokens differ, none of which the data set holds; the first is 0, "),
            std::string::npos);
}

TEST_F(SameTokensFile, ATokenThatTheModelLacksIsToldUnlessItsDirectoryNamesIt) {
  ModelTokens model = model_tokens();
  model.texts.erase(1);
  model.texts.erase(6);
  EXPECT_NE(told(write(arrays()), model).find("it has token 1, \"<b> \" (in sample 0), which"),
            std::string::npos);
  model.named = {"<b> "};
  EXPECT_EQ(told(write(arrays()), model), "") << "no sample holds token 6";
  EXPECT_EQ(told(write(arrays()), model_tokens()), "") << "nor has the model's 7 a text here";
}

TEST_F(SameTokensFile, WithoutTextsNothingIsKnown) {
  testing::Arrays a = arrays();
  a.token_byte_offsets.clear();
  EXPECT_NE(told(write(a), model_tokens()).find("does not say what text its tokens have"),
            std::string::npos);
}

}  // namespace
}  // namespace zea::test_same_tokens
