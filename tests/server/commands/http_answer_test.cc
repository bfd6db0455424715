#include "server/commands/http_answer.h"

#include <gtest/gtest.h>
#include <random>

#include "server/commands/chat_answer.h"
#include "server/commands/http_call.h"

namespace shoal {
namespace {

struct Read {
  Status status;
  std::string body;
  int code = 0;
  bool done = false;
};

/// The answer in pieces of this many bytes, and then the end of the connection.
Read read(std::string_view text, size_t piece) {
  HttpAnswer answer;
  Read out;
  for (size_t begin = 0; begin < text.size() && out.status.ok(); begin += piece)
    out.status = answer.take(text.substr(begin, piece), &out.body);
  if (out.status.ok()) out.status = answer.end();
  out.code = answer.status();
  out.done = answer.done();
  return out;
}

TEST(HttpAnswerTest, EveryKindOfBodyInPiecesOfEverySize) {
  const std::string_view answers[] = {
      "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello\r\nyou!",
      "HTTP/1.0 200 OK\r\nServer: x\r\n\r\nhello\r\nyou!",
      "HTTP/1.1 200 OK\r\ntransfer-ENCODING:  Chunked \r\n\r\n5\r\nhello\r\n2;x=y\r\n\r\n\r\n"
      "4\r\nyou!\r\n0\r\nTrailer: z\r\n\r\n",
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200\r\nContent-Length: 11\r\n\r\nhello\r\nyou!"};
  for (const std::string_view text : answers) {
    for (size_t piece = 1; piece <= text.size(); ++piece) {
      const Read got = read(text, piece);
      ASSERT_TRUE(got.status.ok()) << text << got.status.to_string();
      EXPECT_EQ(got.body, "hello\r\nyou!") << text;
      EXPECT_EQ(got.code, 200);
      EXPECT_TRUE(got.done);
    }
  }
  EXPECT_EQ(read("HTTP/1.1 204 No Content\r\n\r\n", 3).code, 204);
}

TEST(HttpAnswerTest, WhatIsNoAnswer) {
  struct Bad {
    std::string text;
    Code code;
  };
  const Bad all[] = {
      {std::string("\0\0\x12\x04", 4),
       Code::kFailedPrecondition},  // HTTP/2, which gRPC's port speaks
      {"HTTP/2.0 200 OK\r\n\r\n", Code::kFailedPrecondition},
      {"HTTP/1.1\r\n\r\n", Code::kFailedPrecondition},
      {"HTTP/1.1 OK 200\r\n\r\n", Code::kFailedPrecondition},
      {"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", Code::kFailedPrecondition},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", Code::kFailedPrecondition},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
       Code::kFailedPrecondition},
      {"HTTP/1.1 200 OK\r\nX: " + std::string(70'000, 'x'), Code::kFailedPrecondition},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + std::string(70'000, '1'),
       Code::kFailedPrecondition},
      {"", Code::kAborted},
      {"HTTP/1.1 200 OK\r\nContent-Le", Code::kAborted},
      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", Code::kAborted},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", Code::kAborted},
  };
  for (const Bad& bad : all) {
    for (const size_t piece : {size_t{1}, size_t{7}, size_t{100'000}})
      EXPECT_EQ(read(bad.text, piece).status.code(), bad.code) << bad.text.substr(0, 80);
  }
}

TEST(HttpAnswerTest, AnyBytesAreRead) {
  const std::string seed =
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
  std::mt19937 random(7);
  for (int i = 0; i < 3000; ++i) {
    std::string text = seed;
    for (int changes = 0; changes < 3; ++changes)
      text[random() % text.size()] = "\r\n:; 0f5xH\0"[random() % 11];
    (void)read(text, 1 + random() % 40);
  }
}

TEST(ChatAnswerTest, ReadsEvents) {
  const std::string events =
      ": waiting\n\ndata: {\"id\":\"chatcmpl-1\",\"choices\":[{\"delta\":{\"role\":\"assistant\","
      "\"content\":\"Hel\"},\"token_ids\":[5],\"logprobs\":{\"content\":[{\"token\":\"Hel\"}]}}]}\r\n"
      "\r\ndata:{\"choices\":[{\"delta\":{\"content\":\"lo\"},\"token_ids\":[6,7]}]}\n\n"
      "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
      "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n"
      "data: [DONE]\n\n";
  for (size_t piece = 1; piece < events.size(); piece += 5) {
    ChatAnswer answer;
    std::string text;
    for (size_t begin = 0; begin < events.size(); begin += piece) {
      EXPECT_TRUE(begin > 0 || !answer.whole());
      ASSERT_TRUE(answer.take(200, std::string_view(events).substr(begin, piece), &text).ok());
      EXPECT_EQ(text, answer.text());
    }
    EXPECT_TRUE(answer.whole());
    EXPECT_EQ(answer.error(), "");
    EXPECT_EQ(
        answer.json(true),
        R"({"finish_reason":"stop","logprobs":[{"token":"Hel"}],"request_id":"chatcmpl-1",)"
        R"("text":"Hello","token_ids":[5,6,7],"usage":{"completion_tokens":2,"prompt_tokens":3}})"
        "\n");
  }
}

TEST(ChatAnswerTest, ReadsErrors) {
  std::string text;
  ChatAnswer late;
  EXPECT_TRUE(late.take(200, "data: {\"error\":{\"message\":\"ranks lost\"}}\n\n", &text).ok());
  EXPECT_EQ(late.error(), "ranks lost");
  EXPECT_FALSE(late.may_ask_again()) << "nothing says so";
  for (const auto& [code, retryable] : {std::pair("DRAINING", true),
                                        {"WORKER_LOST", true},
                                        {"rate_limit_exceeded", true},
                                        {"MODEL_CHANGED", false},
                                        {"INTERNAL", false},
                                        {"INVALID_REQUEST", false}}) {
    ChatAnswer ended;
    const std::string event =
        cat("data: {\"error\":{\"message\":\"x\",\"code\":\"", code, "\"}}\n\n");
    EXPECT_TRUE(ended.take(200, event, &text).ok());
    EXPECT_EQ(ended.may_ask_again(), retryable) << code;
  }
  ChatAnswer refused;
  EXPECT_TRUE(refused.take(400, "{\"error\":{\"mess", &text).ok());
  EXPECT_TRUE(refused.take(400, "age\":\"no such field\"}}", &text).ok());
  EXPECT_EQ(refused.error(), "no such field (HTTP 400)");
  ChatAnswer proxy;
  EXPECT_TRUE(proxy.take(502, "<html>Bad\nGateway", &text).ok());
  EXPECT_EQ(proxy.error(), "\"<html>Bad?Gateway\" (HTTP 502)");
  for (const char* bad : {"data: {\n", "data: 5\n", "data: [1]\n"})
    EXPECT_EQ(ChatAnswer().take(200, bad, &text).code(), Code::kInternal) << bad;
  // Members of other types than promised are passed over.
  ChatAnswer odd;
  EXPECT_TRUE(
      odd.take(200,
               "data: {\"id\":1,\"choices\":[5],\"usage\":[]}\ndata: {\"choices\":[{\"delta\":"
               "\"x\",\"token_ids\":7,\"finish_reason\":2}]}\ndata: {\"choices\":{}}\n",
               &text)
          .ok());
  EXPECT_EQ(text, "");
}

TEST(HttpAddressTest, Forms) {
  const auto parsed = [](const char* text) {
    const Result<HttpAddress> address = parse_http_address(text, ServerPort::kHttp);
    if (!address.ok()) return std::string("error");
    return address->unix_path.empty() ? cat(address->host, ' ', address->port)
                                      : cat("unix ", address->unix_path);
  };
  EXPECT_EQ(parsed("127.0.0.1:8000"), "127.0.0.1 8000");
  EXPECT_EQ(parsed("http://host:80/"), "host 80");
  EXPECT_EQ(parsed("http://host:80/v1"), "host 80");
  EXPECT_EQ(parsed("[::1]:8000"), "::1 8000");
  EXPECT_EQ(parsed("unix:/run/shoal"), "unix /run/shoal");
  for (const char* bad : {"", "host", ":80", "host:", "host:0", "host:99999", "host:80x",
                          "unix:", "a b:80", "a\r\nX:80", "ftp://host:443", "http://host:80/other"})
    EXPECT_EQ(parsed(bad), "error") << bad;
  EXPECT_EQ(parsed("https://host:443/v1"), "host 443");
  EXPECT_TRUE(parse_http_address("https://host:443", ServerPort::kHttp)->encrypted);
  EXPECT_FALSE(parse_http_address("host:443", ServerPort::kHttp)->encrypted);
}

TEST(HttpAddressTest, WithoutAPortItSaysWhatToType) {
  const auto said = [](const char* text, ServerPort wanted) {
    return std::string(parse_http_address(text, wanted).status().message());
  };
  for (const char* text : {"localhost", "http://localhost", "http://localhost/v1"}) {
    EXPECT_TRUE(said(text, ServerPort::kGrpc)
                    .ends_with(", which has no port; use --server localhost:50051 (gRPC) for a "
                               "prompt, or localhost:8000 (HTTP) for --chat and --messages"))
        << text;
    EXPECT_TRUE(said(text, ServerPort::kHttp)
                    .ends_with(", which has no port; use --server localhost:8000 (HTTP) for --chat "
                               "and --messages, or localhost:50051 (gRPC) for a prompt"))
        << text;
  }
  EXPECT_NE(said("https://host", ServerPort::kHttp).find("use --server https://host:8000 (HTTP)"),
            std::string::npos);
  for (const char* text : {"", "http://", "a b", "http://host/other"})
    EXPECT_EQ(said(text, ServerPort::kHttp).find("use --server"), std::string::npos) << text;
}

}  // namespace
}  // namespace shoal
