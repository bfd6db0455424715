// The lines of --jsonl: what each is called, and the error about those that are wrong.
#include "server/commands/request_lines.h"

#include <gtest/gtest.h>

#include "runtime/base/json.h"

namespace shoal {
namespace {

std::string id_of(const char* line) {
  std::string id = "none";
  (void)parse_request_json(line, {}, LineKind::kRequest, &id);
  return id;
}

TEST(RequestLinesTest, AnIdIsAnyScalarEvenOfAWrongLine) {
  EXPECT_EQ(id_of(R"({"id":"a\"\u00e9","prompt":"x"})"), "\"a\\\"\xC3\xA9\"");
  EXPECT_EQ(id_of(R"({"id":18446744073709551615,"prompt":"x"})"), "18446744073709551615");
  EXPECT_EQ(id_of(R"({"id":-1.5,"prompt":"x"})"), "-1.5");
  EXPECT_EQ(id_of(R"({"id":false,"prompt":"x"})"), "false");
  EXPECT_EQ(id_of(R"({"id":7,"prompt":1,"wibble":2})"), "7");
  EXPECT_EQ(id_of(R"({"id":null,"prompt":"x"})"), "");
  EXPECT_EQ(id_of(R"({"prompt":"x"})"), "");
  for (const char* changed : {"12345678901234567890123", "-18446744073709551615", "1e300"}) {
    const std::string line = cat(R"({"prompt":"x","id":)", changed, "}");
    EXPECT_EQ(parse_request_json(line, {}).error().status.message(),
              "\"id\" is a number that cannot be repeated exactly; write it as a string");
  }
  EXPECT_FALSE(parse_request_json(R"({"id":{},"prompt":"x"})", {}).ok());
}

// The file's name and the line's number are in front of it, or beside it (error_json).
TEST(RequestLinesTest, ALineThatIsNoJsonIsToldWhatALineIs) {
  RequestLine line{.number = 3};
  line.wrong = parse_request_json("nonsense", {}, LineKind::kPrompt).error();
  const std::string text = wrong_lines("--jsonl f", {line}, LineKind::kPrompt).plain_text();
  EXPECT_TRUE(text.starts_with("--jsonl f line 3: not JSON at byte ")) << text;
  EXPECT_TRUE(text.ends_with("; a line must be a JSON object such as {\"prompt\":\"...\"}"))
      << text;
}

TEST(RequestLinesTest, ALineOfLogitsHasOnlyAPrompt) {
  const auto parse = [](const char* line) {
    return parse_request_json(line, {}, LineKind::kPrompt);
  };
  EXPECT_TRUE(parse(R"({"id":1,"prompt":"x"})").ok());
  EXPECT_TRUE(parse(R"({"prompt_ids":[1]})").ok());
  EXPECT_NE(parse(R"({"prompt":"x","logprobs":1})")
                .error()
                .status.message()
                .find("unknown field \"logprobs\"; the fields are id, prompt and prompt_ids"),
            std::string::npos);
  EXPECT_EQ(
      parse(R"({"messages":[{"role":"user","content":"a"}]})").error().status.message(),
      "unknown field \"messages\"; a line has a prompt; this makes one of chat messages: echo "
      "'{\"prompt_ids\":['$(shoal render MODEL --messages FILE --ids)']}'");
  EXPECT_EQ(parse("{}").error().status.message(), "needs one of \"prompt\" and \"prompt_ids\"");
}

TEST(RequestLinesTest, WhatIsLeftToTheFileOfTheModelIsSaid) {
  GenerationConfig model;
  model.temperature = 0.7F;
  model.top_p = 0.95F;
  const auto text = [&](std::initializer_list<const char*> fields) {
    std::vector<RequestLine> lines;
    for (const char* each : fields)
      lines.push_back(
          {.request = parse_request_json(cat(R"({"prompt":"x")", each, "}"), {}).value()});
    return sampling_of_model(model, lines, 7);
  };
  const std::string from = "sampling from generation_config.json: ";
  const std::string greedy = "; --temperature 0 takes the most likely token";
  const std::string instead = "; seed 7" + greedy;
  EXPECT_EQ(text({""}), from + "temperature 0.7, top-p 0.95" + instead);
  std::vector<RequestLine> batch(2);
  batch[0].number = 1;
  batch[1].number = 2;
  EXPECT_EQ(
      sampling_of_model(model, batch, 7),
      from + "temperature 0.7, top-p 0.95; seed 7 for each line that has no \"seed\" of its own" +
          greedy);
  EXPECT_EQ(text({R"(,"seed":3)"}), from + "temperature 0.7, top-p 0.95" + greedy);
  EXPECT_EQ(text({R"(,"temperature":1)"}), from + "top-p 0.95" + instead);
  EXPECT_EQ(text({R"(,"temperature":1,"top_p":1)"}), "");
  EXPECT_EQ(text({R"(,"temperature":0)"}), "");  // the most likely token, whatever top-p is
  EXPECT_EQ(text({R"(,"temperature":0)", R"(,"top_p":1)"}), from + "temperature 0.7" + instead);
  model.top_k = 20;
  model.min_p = 0.1F;
  model.repetition_penalty = 1.25F;
  EXPECT_EQ(text({R"(,"temperature":0)"}), from + "repetition penalty 1.25");
  EXPECT_EQ(
      text({""}),
      from + "temperature 0.7, top-p 0.95, top-k 20, min-p 0.1, repetition penalty 1.25" + instead);
  model = {};
  EXPECT_EQ(text({""}), "");
  model.temperature = 0;
  EXPECT_EQ(text({""}), from + "temperature 0");
}

RequestLine wrong(int64_t number, const char* why) {
  RequestLine line;
  line.number = number;
  line.wrong = invalid_field(RequestField::kTopP, why);
  return line;
}

TEST(RequestLinesTest, OneErrorNamesTheWrongLines) {
  std::vector<RequestLine> lines(3);
  EXPECT_TRUE(wrong_lines("--jsonl f", lines, LineKind::kRequest).ok());
  lines.push_back(wrong(4, "is bad"));
  EXPECT_EQ(wrong_lines("--jsonl f", lines, LineKind::kRequest).plain_text(),
            "--jsonl f line 4: is bad\nnothing was run; --keep-going runs the 3 other lines");
  EXPECT_EQ(wrong_lines("--jsonl f", {lines[3]}, LineKind::kRequest).plain_text(),
            "--jsonl f line 4: is bad\nnothing was run");
  EXPECT_EQ(wrong_lines("--jsonl f", lines, LineKind::kPrompt).plain_text(),
            "--jsonl f line 4: is bad");  // logits has no such flag
  lines.push_back(wrong(6, "is worse"));
  EXPECT_EQ(wrong_lines("--jsonl f", lines, LineKind::kRequest).plain_text(),
            "--jsonl f: 2 of 5 lines are wrong:\n  line 4: is bad\n  line 6: is worse\n"
            "nothing was run; --keep-going runs the 3 other lines");
  const std::vector<RequestLine> all_wrong = {lines[3], lines[4]};
  EXPECT_TRUE(wrong_lines("--jsonl f", all_wrong, LineKind::kRequest)
                  .plain_text()
                  .ends_with("\n  line 6: is worse\nnothing was run"));
  const std::vector<RequestLine> one_good = {lines[2], lines[3], lines[4]};
  EXPECT_TRUE(wrong_lines("--jsonl f", one_good, LineKind::kRequest)
                  .plain_text()
                  .ends_with("\nnothing was run; --keep-going runs the 1 other line"));
  for (int64_t number = 7; number < 26; ++number) lines.push_back(wrong(number, "is bad"));
  EXPECT_TRUE(wrong_lines("--jsonl f", lines, LineKind::kRequest)
                  .plain_text()
                  .ends_with("\n  and 1 more line\nnothing was run; --keep-going names all, and "
                             "runs the 3 other lines"));
  // logits has no such flag.
  EXPECT_TRUE(
      wrong_lines("--jsonl f", lines, LineKind::kPrompt).plain_text().ends_with("and 1 more line"));
  const std::string longest(5000, 'x');
  for (RequestLine& line : lines) line = wrong(1, longest.c_str());
  EXPECT_LE(wrong_lines("--jsonl f", lines, LineKind::kRequest).plain_text(100'000).size(), 1900u);
}

TEST(RequestLinesTest, AnErrorIsJsonWithTheNameOfItsField) {
  RequestLine line = wrong(4, "is \"bad\"");
  EXPECT_EQ(error_json(line, line.wrong),
            R"({"line":4,"error":{"code":"INVALID_ARGUMENT","field":"top_p",)"
            R"("message":"is \"bad\""}})");
  line.id = "\"a\"";
  line.wrong.field = RequestField::kNone;
  EXPECT_EQ(error_json(line, line.wrong),
            R"({"id":"a","line":4,"error":{"code":"INVALID_ARGUMENT",)"
            R"("message":"is \"bad\""}})");
}

}  // namespace
}  // namespace shoal
