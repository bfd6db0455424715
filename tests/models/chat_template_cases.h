#pragma once
#include <gtest/gtest.h>
#include <string>

#include "models/chat_template.h"

namespace shoal {

inline OrderedJson ordered_json(const std::string& text) {
  auto parsed = parse_ordered_json(text, "test");
  EXPECT_TRUE(parsed.ok()) << parsed.status().to_string();
  return parsed.ok() ? *parsed : OrderedJson();
}

inline ChatTemplate template_of(const std::string& source) {
  auto chat = ChatTemplate::parse(source, "t.jinja");
  EXPECT_TRUE(chat.ok()) << chat.status().to_string();
  return std::move(chat).value();
}

inline Result<RenderedPrompt, RenderError> try_rendering(const std::string& source,
                                                         const std::string& messages,
                                                         const std::string& kwargs = "null") {
  return template_of(source).render({ordered_json(messages), ordered_json(kwargs), true});
}

inline RenderedPrompt rendered(const std::string& source, const std::string& messages,
                               const std::string& kwargs = "null") {
  auto prompt = try_rendering(source, messages, kwargs);
  EXPECT_TRUE(prompt.ok()) << prompt.error().status.to_string();
  return prompt.ok() ? *prompt : RenderedPrompt();
}

}  // namespace shoal
