#include "server/cli/flag_variables.h"

#include <algorithm>
#include <cctype>
#include <iterator>

namespace shoal {
namespace {

constexpr std::string_view kOfOneRun[] = {"--help",  "--print-config", "--json",
                                          "--needs", "--nccl-version", "--communicators"};

}  // namespace

bool of_one_run(std::string_view flag) {
  return std::find(std::begin(kOfOneRun), std::end(kOfOneRun), flag) != std::end(kOfOneRun);
}

std::string variable_of(std::string_view flag) {
  if (flag.ends_with("-port") || flag.ends_with("-host") || of_one_run(flag)) return "";
  std::string name(kVariablePrefix);
  for (const char c : flag.starts_with("--") ? flag.substr(2) : flag)
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

}  // namespace shoal
