// The tables of docs/http.md are what the code does. If one differs, the test prints the right one.
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>

#include "server/http/api_fields.h"
#include "server/http/http_error.h"
#include "server/http/routes.h"

namespace shoal {
namespace {

std::string documented(const std::string& name) {
  std::ifstream file(SHOAL_SOURCE_DIR "/docs/http.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string begin = cat("<!-- ", name, ": begin -->\n");
  const std::string page = text.str();
  const size_t at = page.find(begin);
  if (at == std::string::npos) return "";
  return page.substr(at + begin.size(),
                     page.find(cat("<!-- ", name, ": end -->")) - at - begin.size());
}

TEST(HttpDocs, Routes) {
  std::string table = "| Method | Path | Key |\n|---|---|---|\n";
  for (const RouteInfo& route : http_routes())
    table += cat("| ", route.post ? "POST" : "GET, HEAD", " | `", route.path, "` | ",
                 route.needs_key ? "yes" : "no", " |\n");
  EXPECT_EQ(documented("routes"), table);
}

TEST(HttpDocs, Fields) {
  std::string table = "| Field | completions | chat | |\n|---|---|---|---|\n";
  for (const ApiField& field : api_fields()) {
    std::string meaning = field.meaning;
    if (field.use == FieldUse::kPassed) meaning = "any value passes, because it changes no answer";
    if (field.use == FieldUse::kNeutral) {
      const std::string values = meaning.substr(1, meaning.size() - 2);
      meaning = cat("not supported: only null", values.empty() ? "" : cat(" or `", values, "`"));
    }
    table += cat("| `", field.name, "` | ", field.completions ? "yes" : "", " | ",
                 field.chat ? "yes" : "", " | ", meaning, " |\n");
  }
  EXPECT_EQ(documented("fields"), table);
}

TEST(HttpDocs, Refusals) {
  std::string table = "| Status | `code` | Reason over gRPC |\n|--:|---|---|\n";
  for (int reason = 0; reason < kNotTakenReasons; ++reason) {
    const auto why = static_cast<NotTaken>(reason);
    const HttpError error = to_http_error(refuse(why, Status::error(Code::kInvalidArgument, "x")));
    table += cat("| ", error.status, " | `", error.code, "` | ", reason_of(why), " |\n");
  }
  EXPECT_EQ(documented("refusals"), table);
}

}  // namespace
}  // namespace shoal
