#include "runtime/transport/nccl_log.h"

#include <charconv>
#include <optional>

#include "runtime/base/page_size.h"

namespace shoal {
namespace {

constexpr auto kNone = std::string_view::npos;

/// The text after `mark` in the line.
std::optional<std::string_view> behind(std::string_view line, std::string_view mark) {
  const size_t at = line.find(mark);
  if (at == kNone) return std::nullopt;
  return line.substr(at + mark.size());
}

int64_t leading_number(std::string_view text) {
  int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

/// The two words that name the kind of connection: "SHM/direct" of "SHM/direct/direct",
/// "NET/Socket" of "NET/Socket/0/GDRDMA", "NET/IB" of "NET/IB/0(1)". The rest are numbers and
/// modes, which differ between releases.
std::string kind_of(std::string_view via) {
  const size_t first = via.find('/');
  if (first == kNone) return std::string(via);
  return std::string(via.substr(0, via.find('/', first + 1)));
}

/// Counts a line like "Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0". Over memory only the
/// sender logs a connection. Over a network both ends do, so the receiver's line is left out.
void take_channel(std::string_view text, NcclLog* log) {
  if (text.find(" -> ") == kNone || text.find("[receive]") != kNone) return;
  if (const auto via = behind(text, " via ")) ++log->transports[kind_of(*via)];
}

void take_info(std::string_view text, NcclLog* log) {
  if (text.starts_with("Channel ")) return take_channel(text, log);
  if (const auto bytes = behind(text, "Allocated ");
      bytes && bytes->find(" bytes of shared memory in ") != kNone) {
    const int64_t size = leading_number(*bytes);
    log->dev_shm_bytes += size;
    log->dev_shm_charged += static_cast<int64_t>(whole_pages(static_cast<size_t>(size)));
    ++log->dev_shm_files;
  }
  if (text.find(" coll channels, ") != kNone)
    log->channels = static_cast<int>(leading_number(text));
  if (text.starts_with("Connected all rings")) log->rings = true;
  if (text.starts_with("Connected all trees")) log->trees = true;
  if (text.starts_with("cuMem host allocations do not appear to be working"))
    log->cumem_fallback = true;
}

void take_line(std::string_view line, NcclLog* log) {
  if (const auto warning = behind(line, "NCCL WARN ")) {
    log->last_warning = *warning;
    return;
  }
  // The line with the version has a prefix at the level INFO, and none at VERSION and WARN.
  if (const auto version = behind(line, "NCCL version "); version && log->version.empty())
    log->version = version->substr(0, version->find(' '));
  if (const auto text = behind(line, "NCCL INFO ")) take_info(*text, log);
}

}  // namespace

NcclLog parse_nccl_log(std::string_view text) {
  NcclLog log;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    take_line(line, &log);
    text.remove_prefix(end == kNone ? text.size() : end + 1);
  }
  return log;
}

}  // namespace shoal
