#include "server/http/access.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

HttpRequestHead from(std::string host, std::string origin = "") {
  HttpRequestHead head;
  head.host = std::move(host);
  head.origin = std::move(origin);
  return head;
}

TEST(Access, KnowsTheNamesOfLoopback) {
  for (const char* name : {"localhost", "LOCALHOST:80", "a.localhost", "localhost.", "127.0.0.1",
                           "127.9.9.9:1", "[::1]", "[::1]:8000"})
    EXPECT_TRUE(is_loopback_name(host_without_port(name))) << name;
  for (const char* name : {"", "localhost.evil", "127.0.0.1.evil", "128.0.0.1", "[::2]", "[::1",
                           "0x7f.1", "2130706433", "localhos", "xlocalhost"})
    EXPECT_FALSE(is_loopback_name(host_without_port(name))) << name;
}

TEST(Access, AForeignNameOfALoopbackServerIsRefused) {
  AccessRules rules{.allowed_hosts = {"box.example"}, .bound_to_loopback = true};
  EXPECT_TRUE(check_access(from("localhost:8000"), rules).ok());
  EXPECT_TRUE(check_access(from("BOX.example:8000"), rules).ok());
  EXPECT_TRUE(check_access(from(""), rules).ok()) << "HTTP/1.0 has no Host";
  EXPECT_EQ(check_access(from("evil.example"), rules).status, 403);
  EXPECT_EQ(check_access(from("[::1"), rules).status, 403);
  rules.bound_to_loopback = false;
  EXPECT_TRUE(check_access(from("evil.example"), rules).ok());
}

TEST(Access, PagesOfOtherOriginsAreRefused) {
  AccessRules rules{.allowed_origins = {"https://good.example"}};
  EXPECT_TRUE(check_access(from("a:1", "https://good.example"), rules).ok());
  EXPECT_TRUE(check_access(from("a:1", "http://a:1"), rules).ok()) << "its own page";
  for (const char* origin :
       {"https://evil.example", "null", "http://a", "https://good.example.evil"})
    EXPECT_EQ(check_access(from("a:1", origin), rules).status, 403) << origin;
  EXPECT_TRUE(cors_headers(from("a:1", "https://evil.example"), rules).empty());
  EXPECT_FALSE(cors_headers(from("a:1", "https://good.example"), rules).empty());
  rules.allowed_origins = {"*"};
  EXPECT_TRUE(check_access(from("a:1", "https://evil.example"), rules).ok());
}

}  // namespace
}  // namespace shoal
