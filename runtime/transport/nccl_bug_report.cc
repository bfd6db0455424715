#include "runtime/transport/nccl_bug_report.h"

#include <algorithm>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

std::string names(const std::vector<std::string>& rungs) {
  std::string text;
  for (const std::string& rung : rungs) text += cat(text.empty() ? "" : ", ", rung);
  return text;
}

using Settings = std::vector<std::string>;  // NAME=VALUE

/// "move to 2.29.3, or set NAME=0", or what else does where there is no version to move to.
/// settings: those that were recommended already.
std::string cure(const NcclBug& bug, const Settings& settings = {}) {
  const bool repaired = bug.first_good != 0;
  if (std::find(settings.begin(), settings.end(), bug.avoid) != settings.end())
    return cat(bug.avoid, " above avoids it",
               repaired ? cat("; ", nccl_version_text(bug.first_good), " repairs it") : "");
  const std::string move = repaired ? cat("move to ", nccl_version_text(bug.first_good))
                                    : "no version without it is known";
  return *bug.avoid == 0 ? move : cat(move, repaired ? ", or set " : ": set ", bug.avoid);
}

std::string for_shoal(const NcclBugNotice& notice) {
  if (notice.bug->severity == NcclBugSeverity::kRefuse) return "Shoal does not use this version";
  if (notice.rungs.empty()) return "not Shoal's ranks";
  return cat("Shoal's ranks on ", names(notice.rungs));
}

/// What the table says of the version to move to as a whole. What a single bug says of one may lead
/// to the next bug.
std::string move_text(int version, const Settings& settings) {
  const int good = nccl_version_to_move_to(version);
  if (good == version) return "";
  std::string later;
  for (const NcclBug* bug : nccl_bugs_of(good)) {
    if (!bug->has(version))
      later +=
          cat("      ", nccl_bug_versions(*bug), ": ", bug->what, "\n          ",
              cure(*bug, settings), "\n          only if ", text_of(bug->condition).only_if, "\n");
  }
  return cat("  move to ", nccl_version_text(good),
             ": it repairs every bug above that has a repair",
             later.empty() ? ", and brings none that is known\n"
                           : cat(". It brings these of its own:\n", later));
}

Json code_json(int version) {
  return version == 0 ? Json(nullptr) : Json(nccl_version_text(version));
}

}  // namespace

std::vector<NcclBugNotice> nccl_bug_notices(int version, const std::vector<NcclUse>& uses) {
  std::vector<NcclBugNotice> notices;
  const bool refused = refusing_nccl_bug(version) != nullptr;
  for (const NcclBug* bug : nccl_bugs_of(version)) {
    NcclBugNotice notice{bug, {}};
    for (const NcclUse& use : uses) {
      if (!refused && std::find(use.conditions.begin(), use.conditions.end(), bug->condition) !=
                          use.conditions.end())
        notice.rungs.push_back(use.rung);
    }
    notices.push_back(std::move(notice));
  }
  std::stable_partition(notices.begin(), notices.end(), [](const NcclBugNotice& notice) {
    return notice.bug->severity == NcclBugSeverity::kRefuse || !notice.rungs.empty();
  });
  return notices;
}

std::vector<NcclBugNotice> nccl_bug_notices(const std::vector<NcclUse>& uses) {
  const int version = uses.empty() ? 0 : uses.front().library_version;
  return version == 0 ? std::vector<NcclBugNotice>() : nccl_bug_notices(version, uses);
}

Json to_json(const std::vector<NcclBugNotice>& notices) {
  Json list = Json::array();
  for (const NcclBugNotice& notice : notices) {
    const NcclBug& bug = *notice.bug;
    const NcclBugConditionText& condition = text_of(bug.condition);
    list.push_back({{"what", bug.what},
                    {"severity", severity_name(bug.severity)},
                    {"first_bad", code_json(bug.first_bad)},
                    {"first_good", code_json(bug.first_good)},
                    {"condition", condition.name},
                    {"only_if", condition.only_if},
                    {"engines", condition.engines},
                    {"avoid", *bug.avoid == 0 ? Json(nullptr) : Json(bug.avoid)},
                    {"source", bug.source},
                    {"rungs", notice.rungs}});
  }
  return list;
}

std::string to_text(int version, const std::vector<NcclBugNotice>& notices,
                    const std::vector<std::string>& settings) {
  if (notices.empty()) return "";
  std::string text = cat("known bugs of NCCL ", nccl_version_text(version), ":\n");
  for (const NcclBugNotice& notice : notices) {
    const NcclBug& bug = *notice.bug;
    const NcclBugConditionText& condition = text_of(bug.condition);
    text += cat("  ", nccl_bug_versions(bug), ": ", bug.what, "\n      ", cure(bug, settings),
                "\n      only if ", condition.only_if, "\n      for ", condition.engines, "; ",
                for_shoal(notice), " (", bug.source, ")\n");
  }
  return text + move_text(version, settings);
}

std::vector<std::string> nccl_bug_warnings(const std::vector<NcclUse>& uses,
                                           const std::string& rung) {
  std::vector<std::string> lines;
  for (const NcclBugNotice& notice : nccl_bug_notices(uses)) {
    if (std::find(notice.rungs.begin(), notice.rungs.end(), rung) == notice.rungs.end()) continue;
    const NcclBug& bug = *notice.bug;
    lines.push_back(cat("NCCL ", nccl_version_text(uses.front().library_version), " of ",
                        uses.front().library, " has a known bug: ", bug.what, "; ", cure(bug), " (",
                        bug.source, ")"));
  }
  return lines;
}

std::string why_nccl_is_refused(int version, const std::string& library) {
  const NcclBug* bug = version == 0 ? nullptr : refusing_nccl_bug(version);
  if (bug == nullptr) return "";
  return cat("NCCL ", nccl_version_text(version), " of ", library,
             " is not used, because of a known bug: ", bug->what, "; ", cure(*bug), " (",
             bug->source, ")");
}

}  // namespace shoal
