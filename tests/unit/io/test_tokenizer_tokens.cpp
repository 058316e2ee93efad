// SPDX-License-Identifier: Apache-2.0
// Ids of tokens that a tokenizer.json knows and of new ones, for each kind of vocabulary.
#include "io/tokenizer.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"

namespace zea::test_tokenizer_tokens {
namespace {

using nlohmann::json;

json tokenizer(const char* vocabulary, const char* added = "[]") {
  return {{"added_tokens", json::parse(added)},
          {"model", {{"vocab", json::parse(vocabulary)}}},
          {"version", "1.0"}};
}

TokenizerTokens tokens_of(const json& file) {
  return {file.dump(), "tokenizer.json"};
}

std::string refusal(const json& file, const std::string& token = "<image>") {
  try {
    tokens_of(file).id_of(token);
  } catch (const WeightsError& error) {
    return error.what();
  }
  return "";
}

constexpr const char* kAdded = R"([{"id": 1, "content": "b"}, {"id": 2, "content": "<s>"}])";

TEST(TokenizerTokens, NewOnesStandBehindAllOthers) {
  TokenizerTokens tokens = tokens_of(tokenizer(R"({"a": 0, "b": 1})", kAdded));
  EXPECT_EQ(tokens.id_of("a"), 0);
  EXPECT_EQ(tokens.id_of("<s>"), 2);
  EXPECT_FALSE(tokens.has_new());
  EXPECT_EQ(tokens.id_of("<image>"), 3);
  EXPECT_EQ(tokens.id_of("<audio>"), 4);
  EXPECT_EQ(tokens.id_of("<image>"), 3);
  const json file = json::parse(tokens.text());
  EXPECT_EQ(file["version"], "1.0");
  EXPECT_EQ(file["added_tokens"].size(), 4u);
  EXPECT_EQ(file["added_tokens"][3]["content"], "<audio>");
  EXPECT_EQ(file["added_tokens"][3]["id"], 4);
}

TEST(TokenizerTokens, ThePlacesOfPiecesAreIds) {
  TokenizerTokens tokens = tokens_of(tokenizer(R"([["<unk>", 0.0], ["a", -1.5]])"));
  EXPECT_EQ(tokens.id_of("a"), 1);
  EXPECT_EQ(tokens.id_of("<image>"), 2);
}

TEST(TokenizerTokens, AreListedWhereTheConfigListsThem) {
  TokenizerTokens tokens = tokens_of(tokenizer(R"({"a": 0})"));
  tokens.id_of("<image>");
  const json config = {{"added_tokens_decoder", json::object()}, {"eos_token", "a"}};
  const json found = json::parse(tokens.with_new(config.dump(), "here"));
  EXPECT_EQ(found["added_tokens_decoder"]["1"]["content"], "<image>");
  EXPECT_EQ(found["added_tokens_decoder"]["1"]["special"], true);
  EXPECT_EQ(tokens.with_new("{\"eos_token\": \"a\"}", "here"), "{\"eos_token\": \"a\"}");
}

TEST(TokenizerTokens, WhatCannotBeIsRefused) {
  EXPECT_NE(refusal(tokenizer(R"({"a": 0, "b": 2})")).find("which is that of b"),
            std::string::npos);
  EXPECT_NE(refusal(tokenizer(R"({"a": 1099511627776})"), "a").find("allowed: up to 2147483647"),
            std::string::npos);
  const char* const added = R"([{"id": 9223372036854775807, "content": "b"}])";
  EXPECT_NE(refusal(tokenizer(R"({"a": 0})", added)).find("the id of b is 9223372036854775807"),
            std::string::npos);
  EXPECT_NE(refusal(tokenizer(R"({"a": -1})")).find("tokenizer.json"), std::string::npos);
  EXPECT_NE(refusal(tokenizer("3")).find("no table of tokens"), std::string::npos);
  EXPECT_NE(refusal(json::object()).find("\"model\" is missing"), std::string::npos);
}

}  // namespace
}  // namespace zea::test_tokenizer_tokens
