#include "runtime/transport/report_text.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "runtime/base/counted.h"
#include "runtime/base/gpu_name.h"
#include "runtime/base/log.h"
#include "runtime/base/quantity.h"
#include "runtime/base/terminal.h"
#include "runtime/base/text_values.h"
#include "runtime/transport/nccl_bug_report.h"
#include "runtime/transport/shm_size.h"

namespace shoal {
namespace {

std::string figure(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

/// "in Shoal's benchmarks an all-reduce takes 1.1 times as long with 8 KiB and 2.2 times with 1
/// MiB". The figures of this start, which come below, may say something else.
std::string cost_text(const RungCost& cost) {
  if (!cost.measured()) return "nobody has measured how much slower that is";
  return cat("in Shoal's benchmarks an all-reduce takes ", figure("%.1f", cost.small),
             " times as long with 8 KiB and ", figure("%.1f", cost.large), " times with 1 MiB");
}

std::string refusals_text(const TransportReport& report) {
  std::string text, before;
  for (const Refusal& refusal : report.refusals) {
    const std::string why = explained(refusal.status, kMostReasonBytes);
    text += cat("  refused ", refusal.rung,
                refusal.phase == Phase::kBudget ? "" : cat(" (", phase_name(refusal.phase), ")"),
                why == before ? ": for the same reason\n" : "\n");
    if (why != before) text += indented(why, "    ");
    before = why;
  }
  return text;
}

/// What the names in the refusals mean, once each and in the order of a start. A refusal by the
/// budget has no such name, because it says itself that room is short, or that no file can be made.
std::string phases_text(const TransportReport& report) {
  std::set<Phase> phases;
  for (const Refusal& refusal : report.refusals) phases.insert(refusal.phase);
  phases.erase(Phase::kBudget);
  std::string text;
  for (const Phase phase : phases)
    text += cat("  (", phase_name(phase), "): ", phase_meaning(phase), "\n");
  return text;
}

std::string consumer_text(const Consumer& consumer, const char* where) {
  return cat("      ", bytes_text(consumer.bytes), "  ", consumer.what, where, "\n");
}

bool was_refused(const TransportReport& report, const std::string& rung) {
  return std::any_of(report.refusals.begin(), report.refusals.end(),
                     [&](const Refusal& refusal) { return refusal.rung == rung; });
}

/// "1052672 B (1.0 MiB) in /dev/shm, which count as memory". What is in /dev/shm is memory too, and
/// is not needed twice.
std::string memory_text(const TransportReport& report, const ShmNeed& need) {
  const int64_t shm = need.dev_shm_bytes(), all = need.memory_bytes();
  const std::string in_shm = cat(bytes_text(shm), " in ", report.facts.dev_shm.path);
  if (shm == 0) return cat(in_shm, ", ", bytes_text(all), " of memory");
  if (shm == all) return cat(in_shm, ", which count as memory");
  return cat(in_shm, ", ", bytes_text(all), " of memory, those among them");
}

/// The memory that the rung in use takes, and that the refused rungs would have taken. The needs of
/// all other rungs are left out: those rungs were not looked at, so their needs explain nothing.
std::string needs_text(const TransportReport& report) {
  std::string text;
  bool in_use = false;
  for (const ShmNeed& need : report.needs) {
    if (need.rung != report.rung && !was_refused(report, need.rung)) continue;
    in_use = in_use || need.rung == report.rung;
    text += cat(need.rung == report.rung ? "* " : "  ", "need of ", need.rung, ": ",
                words(need.bound), memory_text(report, need), "\n");
    for (const Consumer& consumer : need.dev_shm) text += consumer_text(consumer, "");
    for (const Consumer& consumer : need.memory) text += consumer_text(consumer, " (memory)");
  }
  if (text.empty()) return "";
  return cat("these bytes are for Shoal's ranks; --nccl-version V has those of NCCL in another ",
             "engine", in_use ? "; * is the transport in use" : "", ":\n", text);
}

/// False if the start has ended before a rung was looked at, for example because there is no
/// driver. What rungs need and what NCCL does would then only hide why.
bool rungs_matter(const TransportReport& report) {
  return report.failure.ok() || !report.refusals.empty();
}

/// That the size below asks for no change here; empty: it may. A transport that is used in /dev/shm
/// proves that files can be made and have room there.
std::string enough_text(const TransportReport& report, const ShmSize& size) {
  const ShmDirFacts& dir = report.facts.dev_shm;
  const auto used = std::find_if(report.needs.begin(), report.needs.end(),
                                 [&](const ShmNeed& need) { return need.rung == report.rung; });
  if (used == report.needs.end() || used->dev_shm_bytes() == 0 || !report.refusals.empty() ||
      size.bound == Bound::kAtLeast || dir.free_bytes < size.bytes)
    return "";
  return cat("this ", dir.path, " is enough as it is, with ", bytes_text(dir.free_bytes),
             " free\n");
}

/// Nothing beside a remedy that has a size too: that one also counts what is in /dev/shm.
std::string sizes_text(const TransportReport& report) {
  if (!rungs_matter(report) ||
      std::any_of(report.remedies.begin(), report.remedies.end(),
                  [](const Remedy& remedy) { return remedy.sizes_dev_shm; }))
    return "";
  const ShmSize size = shm_size_for(report.facts, report.needs, report.headroom_bytes.value_or(0));
  return enough_text(report, size) + to_text(size, counted(report.world_size, "rank"));
}

std::string nccl_text(const TransportReport& report) {
  std::string text;
  for (const NcclUse& use : report.nccl) {
    if (use.tried || (report.rung.empty() && rungs_matter(report))) text += to_text(use);
  }
  if (text.empty() && !rungs_matter(report)) return "";
  return text + to_text(report.facts.gpu.nccl_version, nccl_bug_notices(report.nccl));
}

std::string restarts_text(const TransportReport& report) {
  std::string text;
  if (report.restart_count > static_cast<int64_t>(report.restarts.size()))
    text += cat("  restarts: ", report.restart_count, ", the last of them:\n");
  for (const std::string& restart : report.restarts) text += cat("  restarted: ", restart, "\n");
  return text;
}

/// What comes before refusals and remedies that nobody has to act on.
std::string as_good_text(const TransportReport& report) {
  if (report.verdict() != Verdict::kAsGood || report.refusals.empty()) return "";
  return cat("nothing needs to be done; why ", report.first(), " is not used",
             report.remedies.empty() ? ":\n" : ", and what would let it be used:\n");
}

/// True if every rung of a list was refused that leaves others out.
bool list_has_failed(const TransportReport& report) {
  return !report.order_by.empty() && report.refusals.size() >= report.order.size();
}

/// True if /dev/shm had too little room for a rung, and the arithmetic said so.
bool is_too_large(const TransportReport& report, const Refusal& refusal) {
  const ShmDirFacts& dir = report.facts.dev_shm;
  const auto need = std::find_if(report.needs.begin(), report.needs.end(),
                                 [&](const ShmNeed& one) { return one.rung == refusal.rung; });
  return refusal.phase == Phase::kBudget && dir.size_bytes > 0 && dir.open_errno == 0 &&
         need != report.needs.end() && need->dev_shm_bytes() > 0 &&
         report.headroom_bytes.value_or(0) > dir.free_bytes - need->dev_shm_bytes();
}

/// The flag without which another rung may work that is as good as the first; empty: there is none.
std::string flag_remedy_text(const TransportReport& report) {
  const Verdict verdict = report.verdict();
  if (verdict < Verdict::kSlower || (verdict == Verdict::kNone && !list_has_failed(report)))
    return "";
  const Rung *other = find_rung(report.may_work), *first = find_rung(report.first());
  if (other == nullptr || first == nullptr || !as_good(cost_beside(*other, *first))) return "";
  return cat("remedy (flags): leave out ",
             verdict == Verdict::kForbidden ? report.forbidden_by : report.order_by, ": ",
             other->name, " may work then, which is as good as ", first->name, "\n");
}

/// What to paste, or what one may paste if the rung in use is as good as the first.
std::string remedies_text(const TransportReport& report) {
  if (report.verdict() != Verdict::kAsGood)
    return flag_remedy_text(report) + to_text(report.remedies);
  std::string text;
  for (const Remedy& remedy : report.remedies) {
    text += cat("to use ", report.first(), " instead (optional",
                remedy.kind == "other" ? "" : cat(", ", remedy.kind),
                "): ", remedy.optional_title.empty() ? remedy.title : remedy.optional_title, "\n",
                indented(remedy.text, "    "));
  }
  return text;
}

/// What takes the room in /dev/shm, if the room is why a rung was refused.
std::string largest_files_text(const TransportReport& report) {
  const ShmDirFacts& dir = report.facts.dev_shm;
  if (dir.largest_files.empty() ||
      std::none_of(report.refusals.begin(), report.refusals.end(),
                   [](const Refusal& refusal) { return refusal.shared_memory(); }))
    return "";
  std::string text = cat("the largest files in ", dir.path, ":\n");
  for (const ShmFile& file : dir.largest_files) {
    const std::string user =
        file.user.empty() ? cat(file.uid) : cat(printable(file.user), " (", file.uid, ")");
    text += cat("  ", bytes_text(file.bytes), "  ", printable(file.path), " of user ", user,
                ", last written ", age_text(file.age_s), " ago\n");
  }
  return text;
}

/// The devices that were found, by CUDA's numbers.
std::string gpus_text(const TransportReport& report) {
  std::string text;
  int32_t number = 0;
  for (const GpuDevice& gpu : report.facts.gpu.devices) {
    text += cat("  ", to_text(GpuName{number++, gpu.uuid, gpu.name}), ": compute capability ",
                gpu.compute_capability, ", ", bytes_text(gpu.bytes), "\n");
  }
  return text;
}

}  // namespace

std::string indented(const std::string& text, const std::string& indent) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    out += indent + text.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return out;
}

std::string none_works_text(const TransportReport& report) {
  const std::string ranks = counted(report.world_size, "rank");
  if (!list_has_failed(report)) return cat("no transport works for ", ranks);
  return cat("none of ", report.order_by, " works for ", ranks);
}

std::string forbidden_text(const TransportReport& report) {
  std::string names;
  bool room = true;  // is why each of them was refused
  for (const Refusal& refusal : report.refusals) {
    const bool last = &refusal == &report.refusals.back();
    names += cat(names.empty() ? "" : last ? " and " : ", ", refusal.rung);
    room = room && is_too_large(report, refusal);
  }
  const bool one = report.refusals.size() == 1;
  return cat(names, one ? " does not " : " do not ",
             room ? cat("fit into ", report.facts.dev_shm.path) : "work here", " for ",
             counted(report.world_size, "rank"), ", and the policy (", report.forbidden_by,
             ") allows nothing else");
}

std::string may_work_text(const TransportReport& report) {
  if (!list_has_failed(report) || report.may_work.empty()) return "";
  return cat("; without it, ", report.may_work, " may work");
}

std::string verdict_text(const TransportReport& report, bool colour, RankWords words) {
  const auto word = [colour](const char* text, Paint paint) {
    return cat(painted(text, paint, colour), ": ");
  };
  const std::string ok = word("OK", Paint::kGreen), no = word("NO", Paint::kRed);
  const std::string ranks = words == RankWords::kShoals
                                ? cat(report.world_size, " of Shoal's ranks")
                                : counted(report.world_size, "rank");
  const std::string first = report.first();
  switch (report.verdict()) {
    case Verdict::kFirst:
      if (report.world_size == 1) return ok + "one rank needs no transport.";
      return cat(ok, ranks, " use ", report.rung, ", the first choice.");
    case Verdict::kAsGood:
      return cat(ok, ranks, " use ", report.rung, ", which is as good as ", first, ".");
    case Verdict::kSlower:
      return cat(word("SLOWER", Paint::kYellow), ranks, " use ", report.rung, " instead of ", first,
                 ": ", cost_text(report.cost()),
                 report.allowed_by.empty() ? "" : cat("; ", report.allowed_by, " allows it"), ".");
    case Verdict::kForbidden:
      return cat(no, forbidden_text(report), ".");
    case Verdict::kNone:
      break;
  }
  // Nobody says the failure again, so that it is not cut as a reason in a list is.
  if (!report.failure.ok())
    return cat(no, ranks, " could not be started: ", explained(report.failure));
  const bool untried = !report.refusals.empty() && report.refusals.size() < report.order.size();
  return cat(
      no, none_works_text(report),
      untried ? "; the time for a start ended before the others were tried" : may_work_text(report),
      ".");
}

std::string figures_text(const TransportReport& report) {
  std::string text = cat("transport ", report.rung, " for ", counted(report.world_size, "rank"));
  const SelfTestFigures& figures = report.self_test;
  if (figures.latency_us <= 0) return text;
  const std::string verified = cat("verified in ", figure("%.2f", figures.seconds), " s");
  if (figures.noisy) return cat(text, ": ", verified, "; timing: this machine is too busy to tell");
  return cat(text, ": 8 KiB all-reduce ", figure("%.1f", figures.latency_us), " us, 1 MiB at ",
             figure("%.2f", figures.bytes_per_s / 1e9), " GB/s, ", verified);
}

std::string to_text(const TransportReport& report, bool colour, RankWords words) {
  std::string text = verdict_text(report, colour, words) + "\n";
  if (!report.rung.empty())
    text += cat(figures_text(report),
                report.self_test.noisy ? "; the figures in --json are unreliable\n" : "\n");
  if (const std::string waits = to_text(report.waits); !waits.empty()) text += waits + "\n";
  text += as_good_text(report) + refusals_text(report) + phases_text(report) + gpus_text(report);
  text += needs_text(report) + sizes_text(report) + nccl_text(report);
  text += restarts_text(report) + largest_files_text(report);
  return text + remedies_text(report);
}

std::string to_text(const std::vector<Remedy>& remedies) {
  std::string text;
  for (const Remedy& remedy : remedies) {
    const std::string place = remedy.kind == "other" ? "" : cat(" (", remedy.kind, ")");
    text += cat("remedy", place, ": ", remedy.title, "\n", indented(remedy.text, "    "));
  }
  return text;
}

}  // namespace shoal
