// What a chat template says when it cannot be used: where it is wrong, which limit it reached, and
// what is wrong with the messages. What it renders is compared with Jinja2 in
// chat_template_diff_test.py.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <unistd.h>

#include "tests/models/chat_template_cases.h"

namespace shoal {
namespace {

using Kind = RenderError::Kind;

const std::string kMessages = R"([{"role":"user","content":"hi"}])";

std::string text_of(const std::string& source, const std::string& messages = kMessages,
                    const std::string& kwargs = "null") {
  return rendered(source, messages, kwargs).text;
}

std::string syntax_error(const std::string& source) {
  const auto chat = ChatTemplate::parse(source, "t.jinja");
  EXPECT_FALSE(chat.ok()) << source;
  return std::string(chat.status().message());
}

TEST(ChatTemplate, SyntaxErrorsNameLineAndColumn) {
  EXPECT_EQ(syntax_error("a\nb {% if %}"),
            "t.jinja:2:9: chat template: expected an expression, got '%}'");
  EXPECT_EQ(syntax_error("ä {{ x | nothing }}"),
            "t.jinja:1:10: chat template: there is no filter named 'nothing'");
  EXPECT_EQ(syntax_error("{% for x in y %}\n"),
            "t.jinja:1:17: chat template: the template ends before 'endfor'");
  EXPECT_EQ(syntax_error("{% include 'x' %}"),
            "t.jinja:1:4: chat template: 'include' is not supported in chat templates");
}

TEST(ChatTemplate, FailuresNameLineAndColumn) {
  const auto failed = try_rendering("a\n  {{ messages[0].x.y }}", kMessages);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().kind, Kind::kTemplate);
  EXPECT_EQ(failed.error().status.code(), Code::kInvalidArgument);
  EXPECT_EQ(failed.error().status.message(),
            "t.jinja:2:6: chat template: 'dict' object has no attribute 'x'");
}

TEST(ChatTemplate, OneArgumentIsNoPlural) {
  const auto refused = [](const std::string& source) {
    const auto failed = try_rendering(source, kMessages);
    EXPECT_FALSE(failed.ok()) << source;
    return failed.ok() ? std::string() : std::string(failed.error().status.message());
  };
  EXPECT_TRUE(refused("{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}")
                  .ends_with("the macro 'm' takes not more than 1 argument"));
  EXPECT_TRUE(refused("{% macro m(a, b) %}{% endmacro %}{{ m(1, 2, 3) }}")
                  .ends_with("the macro 'm' takes not more than 2 arguments"));
  EXPECT_TRUE(
      refused("{{ 'a' | trim('b', 'c') }}").ends_with("trim() takes at most 1 argument, not 2"));
}

TEST(ChatTemplate, RaisedTextIsATypeOfItsOwn) {
  const auto raised = try_rendering("{{ raise_exception('no ' ~ messages[0].role) }}", kMessages);
  ASSERT_FALSE(raised.ok());
  EXPECT_EQ(raised.error().kind, Kind::kRaised);
  EXPECT_EQ(raised.error().raised, "no user");
  EXPECT_EQ(raised.error().status.message(), "t.jinja:1:4: chat template: no user");
}

void expect_limit(const std::string& source) {
  const auto failed = try_rendering(source, kMessages);
  ASSERT_FALSE(failed.ok()) << source.substr(0, 80);
  EXPECT_EQ(failed.error().kind, Kind::kLimit) << source.substr(0, 80);
  EXPECT_EQ(failed.error().status.code(), Code::kResourceExhausted);
}

TEST(ChatTemplate, LimitsAreReachedSoon) {
  // Each of these takes minutes or gigabytes without a limit.
  const std::string loop = "{% for a in range(99999) %}";
  const std::string end = "{% endfor %}";
  expect_limit(loop + loop + loop + end + end + end);
  expect_limit("{% set ns = namespace(x='ab') %}" + loop + "{% set ns.x = ns.x ~ ns.x %}" + end);
  expect_limit("{% set ns = namespace(x=[1]) %}" + loop + "{% set ns.x = ns.x + ns.x %}" + end);
  expect_limit("{{ 'a' * 99999999999 }}");
  expect_limit("{{ [1] * 99999999999 }}");
  expect_limit("{{ '%99999999d' % 1 }}");
  expect_limit("{{ 'a'.ljust(99999999) }}");
  expect_limit("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
  expect_limit("{% macro m(a) %}{{ m([a]) }}{% endmacro %}{{ m(1) }}");
  expect_limit("{% set ns = namespace(x='x' * 1000000) %}" + loop + "{{ ns.x }}" + end);
  expect_limit("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}");
  expect_limit("{{ 9223372036854775807 + 1 }}");
  expect_limit("{{ '%d' % 1e19 }}");
  expect_limit(loop + "{% set ns = namespace() %}" + end + loop + "{% set ns = namespace() %}" +
               end);
}

TEST(ChatTemplate, WhatIsStillBeingMadeIsBoundedToo) {
  const std::string text = "{% set s = ('a' * 1000) * 60000 %}";
  expect_limit("{{ ('a' * 1000000).replace('', 'b' * 1000000) }}");
  std::string many = "s";
  for (int i = 0; i < 1000; ++i) many += " ~ s";
  expect_limit(text + "{{ " + many + " }}");
  expect_limit(text + "{{ ([s] * 1000) | join }}");
  expect_limit(text + "{{ ''.join([s] * 1000) }}");
  expect_limit("{{ ('%9999d' * 1000000) % ((1,) * 1000000) }}");
  expect_limit("{{ ('{0:9999}' * 1000000).format(1) }}");
}

TEST(ChatTemplate, ValuesThatHoldTheSameOneTwiceCostWhatTheySeemToHold) {
  const auto doubled = [](const char* twice, const char* use) {
    return cat("{% set ns = namespace(x=(1,)) %}{% for i in range(60) %}{% set ns.x = ", twice,
               " %}{% endfor %}{{ ", use, " }}");
  };
  expect_limit(doubled("[ns.x, ns.x]", "ns.x == ns.x"));
  expect_limit(doubled("(ns.x, ns.x)", "{ns.x: 1}"));
  expect_limit(doubled("{1: ns.x, 2: ns.x}", "ns.x == ns.x"));
}

TEST(ChatTemplate, ASearchTakesNoLongerThanItsText) {
  const std::string found =
      "{% set k = 'a' * 1000 %}{% set a = k * 30000 %}{% set b = k * 60000 %}";
  const auto rendered = try_rendering(found + "{{ a ~ 'b' in b }}", kMessages);
  ASSERT_TRUE(rendered.ok()) << rendered.error().status.to_string();
  EXPECT_EQ(rendered->text, "False");
  expect_limit(found + "{{ b.rfind(a ~ 'b') }}");
  EXPECT_EQ(text_of("{{ ('abcdefghijkl\n' * 20000).rsplit('\n') | length }}"), "20001");
}

TEST(ChatTemplate, DeepNestingIsRefusedInsteadOfOverflowingTheStack) {
  const auto nest = [](const std::string& open, const std::string& close) {
    std::string text = "{{ ";
    for (int i = 0; i < 100'000; ++i) text += open;
    text += "1";
    for (int i = 0; i < 100'000; ++i) text += close;
    return text + " }}";
  };
  for (const auto& [open, close] :
       std::vector<std::pair<std::string, std::string>>{{"(", ")"},
                                                        {"[", "]"},
                                                        {"-", ""},
                                                        {"not ", ""},
                                                        {"{1:", "}"},
                                                        {"f(", ")"},
                                                        {"", " + 1"},
                                                        {"", ".a"},
                                                        {"", "|trim"},
                                                        {"", " if 1 else 2"},
                                                        {"", "[0]"},
                                                        {"", " ~ 1 + 1"},
                                                        {"1 if ", " else 1"}}) {
    EXPECT_NE(syntax_error(nest(open, close)).find("deep"), std::string::npos) << open << close;
  }
  std::string ifs;
  for (int i = 0; i < 100'000; ++i) ifs += "{% if 1 %}";
  EXPECT_NE(syntax_error(ifs).find("deep"), std::string::npos);
}

TEST(ChatTemplate, ListsThatHoldEachOtherAreRefused) {
  expect_limit(
      "{% set ns = namespace(x=[]) %}{% for a in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}"
      "{{ ns.x }}");
}

TEST(ChatTemplate, GivesUp) {
  const std::atomic<bool> given_up = true;
  const std::string loop = "{% for a in range(99999) %}{{ a }}{% endfor %}";
  const auto result = template_of(loop).render(
      {ordered_json(R"([{"role":"user","content":"x"}])"), nullptr, true}, {&given_up});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().kind, Kind::kGivenUp);
  EXPECT_EQ(result.error().status.code(), Code::kCancelled);
}

// The caller reads the clock, and nothing in models/ does.
TEST(ChatTemplate, TheTimeIsTheCallers) {
  const ChatTemplate chat = template_of("{{ strftime_now('%s') }}");
  const ChatRequest request{ordered_json(R"([{"role":"user","content":"x"}])"), nullptr, true};
  EXPECT_EQ(chat.render(request, {.now_s = 1'700'000'000})->text, "1700000000");
  EXPECT_EQ(chat.render(request, {.now_s = 0})->text, "0");
  const auto timeless = chat.render(request);
  ASSERT_FALSE(timeless.ok());
  EXPECT_EQ(timeless.error().kind, Kind::kTemplate);
  EXPECT_NE(timeless.error().status.message().find("strftime_now: the time is not known here"),
            std::string::npos)
      << timeless.error().status.message();
}

TEST(ChatTemplate, RendersTwiceWithTheSameResult) {
  const ChatTemplate chat = template_of(
      "{% set ns = namespace(n=0) %}{% macro m() %}{{ ns.n }}{% endmacro %}{% for c in 'ab' %}"
      "{% set ns.n = ns.n + 1 %}{{ m() }}{% endfor %}");
  const ChatRequest request{ordered_json(R"([{"role":"user","content":"x"}])"), nullptr, true};
  EXPECT_EQ(chat.render(request)->text, "12");
  EXPECT_EQ(chat.render(request)->text, "12");
}

void expect_bad(const std::string& messages, const std::string& field,
                const std::string& kwargs = "null") {
  const auto failed = try_rendering("{{ messages[0].content }}", messages, kwargs);
  ASSERT_FALSE(failed.ok()) << messages;
  EXPECT_EQ(failed.error().kind, Kind::kMessages) << messages;
  EXPECT_EQ(failed.error().field, field) << messages;
  EXPECT_TRUE(std::string(failed.error().status.message()).starts_with(field)) << messages;
}

TEST(ChatTemplate, BadMessagesNameTheField) {
  expect_bad("{}", "messages");
  expect_bad("[]", "messages");
  expect_bad("[1]", "messages[0]");
  expect_bad(R"([{"content":"x"}])", "messages[0].role");
  expect_bad(R"([{"role":1,"content":"x"}])", "messages[0].role");
  expect_bad(R"([{"role":"user"}])", "messages[0].content");
  expect_bad(R"([{"role":"user","content":null}])", "messages[0].content");
  expect_bad(R"([{"role":"user","content":"x"},{"role":"user","content":5}])",
             "messages[1].content");
  expect_bad(R"([{"role":"user","content":["x"]}])", "messages[0].content[0]");
  expect_bad(R"([{"role":"user","content":[{"type":"image_url","image_url":{}}]}])",
             "messages[0].content[0]");
  expect_bad(R"([{"role":"user","content":[{"type":"text","text":1}]}])", "messages[0].content[0]");
  const std::string good = R"([{"role":"user","content":"x"}])";
  expect_bad(good, "chat_template_kwargs", "[1]");
  expect_bad(good, "chat_template_kwargs.messages", R"({"messages":[]})");
  expect_bad(good, "chat_template_kwargs.chat_template", R"({"chat_template":"x"})");
}

TEST(ChatTemplate, ContentHasTheFormThatTheTemplateTakes) {
  const std::string parts =
      R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])";
  EXPECT_EQ(text_of("{{ messages[0].content }}", parts), "a\nb");
  const std::string walk = "{% for p in m['content'] %}<{{ p.text }}>{% endfor %}";
  EXPECT_EQ(text_of("{% for m in messages %}" + walk + "{% endfor %}", parts), "<a><b>");
  EXPECT_EQ(text_of("{% for m in messages %}" + walk + "{% endfor %}"), "<hi>");
  EXPECT_EQ(text_of("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}" +
                    walk + "{% endif %}{% endfor %}"),
            "hi");
  EXPECT_EQ(text_of("{% set ms = messages[1:] %}{% for m in ms %}{% set c = m.content %}"
                    "{% for p in c %}{{ p.text }}{% endfor %}{% endfor %}{{ messages[0].content[0]"
                    ".type }}",
                    parts),
            "text");
  const std::string call =
      R"([{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{\"b\": 1, \"a\": 2}"}}]}])";
  EXPECT_EQ(text_of("{{ messages[0].content is none }}{{ messages[0].tool_calls[0].function"
                    ".arguments | tojson }}",
                    call),
            "True{\"b\": 1, \"a\": 2}");
}

TEST(ChatTemplate, KwargsAreVariables) {
  EXPECT_EQ(text_of("{{ tools is none }}{{ a.b }}{{ add_generation_prompt }}", kMessages,
                    R"({"a":{"b":1},"add_generation_prompt":false})"),
            "True1False");
}

/// A folder with the files of a model.
class Folder {
 public:
  Folder() { std::filesystem::create_directories(path_); }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(path_ + "/" + name) << text;
    return path_ + "/" + name;
  }
  const std::string& path() const { return path_; }

 private:
  const std::string path_ = testing::TempDir() + "shoal_chat_template_" + std::to_string(getpid());
};

std::string loaded(const Folder& folder, const std::optional<std::string>& file = {},
                   const std::string& kwargs = "null") {
  const auto chat = ChatTemplate::load(folder.path(), file);
  if (!chat.ok()) return code_name(chat.status().code());
  const auto prompt = chat->render(
      {ordered_json(R"([{"role":"user","content":"x"}])"), ordered_json(kwargs), true});
  return prompt.ok() ? prompt->text : "not rendered";
}

TEST(ChatTemplate, TheLaterSourceWins) {
  Folder folder;
  EXPECT_EQ(loaded(folder), "FAILED_PRECONDITION");
  folder.write(
      "tokenizer_config.json",
      R"({"bos_token":{"content":"<s>"},"eos_token":"</s>","chat_template":"A{{ bos_token }}{{ eos_token }}{{ pad_token }}"})");
  EXPECT_EQ(loaded(folder), "A<s></s>");
  folder.write("special_tokens_map.json", R"({"bos_token":"<no>","pad_token":"<p>"})");
  EXPECT_EQ(loaded(folder), "A<s></s><p>");
  folder.write("chat_template.jinja", "B{{ bos_token }}\n");
  EXPECT_EQ(loaded(folder), "B<s>");
  const std::string own = folder.write("own.jinja", "C{{ eos_token }}");
  EXPECT_EQ(loaded(folder, own), "C</s>");
  EXPECT_EQ(loaded(folder, folder.path() + "/none"), "NOT_FOUND");
  folder.write("chat_template.jinja", "{% if %}");
  EXPECT_EQ(loaded(folder), "INVALID_ARGUMENT");
  EXPECT_EQ(loaded(folder, own), "C</s>");
}

TEST(ChatTemplate, ListsOfNamedTemplates) {
  Folder folder;
  folder.write(
      "tokenizer_config.json",
      R"({"chat_template":[{"name":"tool_use","template":"T"},{"name":"default","template":"D"}]})");
  EXPECT_EQ(loaded(folder), "D");
  EXPECT_EQ(loaded(folder, {}, R"({"tools":[]})"), "T");
  folder.write("tokenizer_config.json", R"({"chat_template":[{"name":"x","template":"T"}]})");
  EXPECT_EQ(loaded(folder), "INVALID_ARGUMENT");
  folder.write("tokenizer_config.json", R"({"chat_template":5})");
  EXPECT_EQ(loaded(folder), "INVALID_ARGUMENT");
  folder.write("tokenizer_config.json", "{");
  EXPECT_EQ(loaded(folder), "INVALID_ARGUMENT");
  folder.write("tokenizer_config.json", "{}");
  folder.write("chat_template.jinja", "\xFF");
  EXPECT_EQ(loaded(folder), "INVALID_ARGUMENT");
  folder.write("chat_template.jinja", std::string(2 << 20, 'x'));
  EXPECT_EQ(loaded(folder), "RESOURCE_EXHAUSTED");
}

}  // namespace
}  // namespace shoal
