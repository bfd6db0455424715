#include "runtime/transport/facts/host_facts_json.h"

#include <concepts>
#include <limits>
#include <type_traits>

#include "runtime/base/json.h"
#include "runtime/transport/facts/fact_names.h"

namespace shoal {
namespace {

/// More than any real number of bytes, and small enough that a sum of a few does not overflow.
constexpr int64_t kMost = int64_t{1} << 60;
constexpr size_t kMostGpus = 4096;

struct Range {
  int64_t least = 0;
  int64_t most = kMost;
  /// The number that stands for "none" or "unknown". In JSON it becomes null, because a script
  /// would take the number for a figure.
  int64_t none = INT64_MIN;
};
constexpr Range kLimit{-1, kMost, -1};
constexpr Range kSize{0, kMost, 0};
constexpr Range kErrno{0, 4095, 0};
constexpr Range kVersion{0, 10'000'000, 0};

// Each function lists the fields of a struct once for both directions: v is a Writer or a Reader.

template <typename V>
void describe(V& v, ShmFile& f) {
  v.value("path", f.path);
  v.integer("bytes", f.bytes);
  v.integer("uid", f.uid, {0, UINT32_MAX});
  v.integer("age_s", f.age_s);
  v.value("user", f.user);
}

template <typename V>
void describe(V& v, ShmDirFacts& f) {
  v.value("path", f.path);
  v.value("exists", f.exists);
  v.value("occupied", f.occupied);
  v.value("fs_type", f.fs_type);
  v.value("mount_options", f.mount_options);
  v.integer("device", f.device, {0, INT64_MAX, 0});
  v.integer("size_bytes", f.size_bytes, kSize);
  v.integer("free_bytes", f.free_bytes, f.size_bytes == 0 ? kSize : Range());
  v.integer("total_inodes", f.total_inodes, kSize);
  v.integer("free_inodes", f.free_inodes, f.total_inodes == 0 ? kSize : Range());
  v.integer("open_errno", f.open_errno, kErrno);
  v.integer("probed_bytes", f.probed_bytes, kSize);
  v.integer("probe_errno", f.probe_errno, kErrno);
  v.value("probe_note", f.probe_note);
  v.structs("largest_files", f.largest_files);
}

template <typename V>
void describe(V& v, CgroupLevel& f) {
  v.value("path", f.path);
  v.integer("limit_bytes", f.limit_bytes, kLimit);
  v.integer("usage_bytes", f.usage_bytes);
  v.integer("reclaimable_bytes", f.reclaimable_bytes);
  v.value("oom_group", f.oom_group);
  v.integer("high_bytes", f.high_bytes, kLimit);
}

template <typename V>
void describe(V& v, CgroupFacts& f) {
  v.integer("version", f.version, {0, 2, 0});
  v.structs("levels", f.levels);
}

template <typename V>
void describe(V& v, LimitFacts& f) {
  v.integer("memlock_bytes", f.memlock_bytes, kLimit);
  v.integer("fsize_bytes", f.fsize_bytes, kLimit);
  v.integer("nofile", f.nofile, kLimit);
  v.integer("nproc", f.nproc, kLimit);
  v.integer("address_space_bytes", f.address_space_bytes, kLimit);
}

template <typename V>
void describe(V& v, PidsFacts& f) {
  v.value("path", f.path);
  v.integer("limit", f.limit, kLimit);
  v.integer("used", f.used, f.limit < 0 ? kSize : Range());
  v.integer("own_threads", f.own_threads);
}

template <typename V>
void describe(V& v, CmaFacts& f) {
  v.value("tried", f.tried);
  v.integer("error", f.error, kErrno);
  v.value("dumpable", f.dumpable);
  v.integer("yama_scope", f.yama_scope, {-1, 3, -1});
  v.integer("seccomp", f.seccomp, {0, 2});
}

template <typename V>
void describe(V& v, GpuDevice& f) {
  v.value("name", f.name);
  v.value("pci_bus_id", f.pci_bus_id);
  v.value("uuid", f.uuid);
  v.value("compute_capability", f.compute_capability);
  v.integer("bytes", f.bytes);
  v.value("why_unusable", f.why_unusable);
  v.integer("free_bytes", f.free_bytes, kLimit);
}

template <typename V>
void describe(V& v, GpuPeerVerdict& f) {
  v.integer("from", f.from, {0, static_cast<int64_t>(kMostGpus)});
  v.integer("to", f.to, {0, static_cast<int64_t>(kMostGpus)});
  v.words("verdict", f);
}

template <typename V>
void describe(V& v, GpuFacts& f) {
  v.integer("count", f.count, {0, static_cast<int64_t>(kMostGpus)});
  v.value("driver_version", f.driver_version);
  v.matrix("peers", f.peers);
  v.value("asked", f.asked);
  v.integer("ranks", f.ranks, {0, 1 << 20, 0});
  v.integer("ranks_per_gpu", f.ranks_per_gpu, {1, 1 << 20});
  v.value("module_path", f.module_path);
  v.value("module_build_id", f.module_build_id);
  v.value("module_architectures", f.module_architectures);
  v.integer("cuda_runtime", f.cuda_runtime, kVersion);
  v.integer("cuda_driver", f.cuda_driver, kVersion);
  v.structs("devices", f.devices);
  v.structs("verdicts", f.verdicts);
  v.words("error_at", f.error_at);
  v.value("error", f.error);
  v.integer("nccl_version", f.nccl_version, kVersion);
  v.value("nccl_path", f.nccl_path);
  v.value("nccl_error", f.nccl_error);
  v.value("cublas_version", f.cublas_version);
  v.value("cublas_path", f.cublas_path);
  v.value("cublas_error", f.cublas_error);
}

template <typename V>
void describe(V& v, LeftFile& f) {
  v.value("path", f.path);
  v.integer("bytes", f.bytes);
  v.integer("uid", f.uid, {0, UINT32_MAX});
  v.words("state", f.state);
}

template <typename V>
void describe(V& v, HostFacts& f) {
  v.value("kernel", f.kernel);
  v.value("container", f.container);
  v.value("can_mount", f.can_mount);
  v.integer("page_bytes", f.page_bytes, {512, 1 << 30});
  v.integer("memory_total_bytes", f.memory_total_bytes, kSize);
  v.integer("memory_available_bytes", f.memory_available_bytes, kSize);
  v.integer("numa_nodes", f.numa_nodes, {1, 1 << 20});
  v.object("dev_shm", f.dev_shm);
  v.integer("memfd_error", f.memfd_error, kErrno);
  v.object("cgroup", f.cgroup);
  v.object("limits", f.limits);
  v.object("pids", f.pids);
  v.value("proc_mounted", f.proc_mounted);
  v.object("cma", f.cma);
  v.value("loopback_ipv4", f.loopback_ipv4);
  v.value("loopback_ipv6", f.loopback_ipv6);
  v.integer("loopback_error", f.loopback_error, kErrno);
  v.integer("local_ports", f.local_ports, kLimit);
  v.strings("interfaces", f.interfaces);
  v.object("gpu", f.gpu);
  v.structs("left_files", f.left_files);
  v.value("gather_ms", f.gather_ms);
}

using OrderedJson = nlohmann::ordered_json;  // in the order of the structs, for people who read it

class Writer {
 public:
  template <typename T>
  void value(const char* key, const T& value) {
    json[key] = value;
  }
  /// Empty means "none" in every text.
  void value(const char* key, const std::string& text) {
    json[key] = text.empty() ? OrderedJson() : OrderedJson(text);
  }
  template <typename T>
  void words(const char* key, const T& word) {
    value(key, std::string(to_text(word)));
  }
  template <std::integral T>
  void integer(const char* key, T value, Range range = {}) {
    json[key] = static_cast<int64_t>(value) == range.none ? OrderedJson() : OrderedJson(value);
  }
  template <typename T>
  void object(const char* key, T& fields) {
    Writer inner;
    describe(inner, fields);
    json[key] = std::move(inner.json);
  }
  template <typename T>
  void structs(const char* key, std::vector<T>& list) {
    OrderedJson& array = json[key] = OrderedJson::array();
    for (T& fields : list) {
      Writer inner;
      describe(inner, fields);
      array.push_back(std::move(inner.json));
    }
  }
  void strings(const char* key, const std::vector<std::string>& list) { json[key] = list; }
  void matrix(const char* key, const std::vector<std::vector<bool>>& rows) { json[key] = rows; }

  OrderedJson json = OrderedJson::object();
};

/// Fills in the fields that are there, and stops at the first that is wrong.
class Reader {
 public:
  Reader(const Json& json, std::string where, Status* status)
      : json_(json), where_(std::move(where)), status_(status) {
    if (status_->ok() && !json.is_object()) fail(cat(where_, " must be an object"));
  }

  void value(const char* key, std::string& out) { take(json_string(json_, key, where_), out); }
  void value(const char* key, bool& out) { take(json_bool(json_, key, where_), out); }
  void value(const char* key, double& out) {
    double number = out;
    take(json_double(json_, key, where_), number);
    if (!(number >= 0)) return fail(cat(where_, ": \"", key, "\" must not be below 0"));
    out = number;
  }
  template <typename T>
  void words(const char* key, T& out) {
    std::string text = to_text(out);
    take(json_string(json_, key, where_), text);
    if (!from_text(text, &out))
      fail(cat(where_, ": \"", key, "\" is \"", text.substr(0, 40), "\", which is not known"));
  }
  template <std::integral T>
  void integer(const char* key, T& out, Range range = {}) {
    auto number = static_cast<int64_t>(out);
    take(json_int(json_, key, where_), number);
    if (!status_->ok()) return;
    if (number < range.least || number > range.most) {
      return fail(cat(where_, ": \"", key, "\" must be from ", range.least, " to ", range.most,
                      ", not ", number));
    }
    out = static_cast<T>(number);
  }
  template <typename T>
  void object(const char* key, T& fields) {
    if (const Json* inner = member(key)) read(*inner, cat(where_, ".", key), fields);
  }
  template <typename T>
  void structs(const char* key, std::vector<T>& list) {
    const Json* array = array_of(key);
    for (size_t at = 0; array != nullptr && at < array->size() && status_->ok(); ++at) {
      read((*array)[at], cat(where_, ".", key, "[", at, "]"), list.emplace_back());
    }
  }
  void strings(const char* key, std::vector<std::string>& list) {
    const Json* array = array_of(key);
    for (size_t at = 0; array != nullptr && at < array->size(); ++at) {
      if (!(*array)[at].is_string()) return fail(cat(where_, ": \"", key, "\" must hold strings"));
      list.push_back((*array)[at].get<std::string>());
    }
  }
  void matrix(const char* key, std::vector<std::vector<bool>>& rows) {
    const Json* array = array_of(key);
    if (array == nullptr) return;
    for (const Json& row : *array) {
      if (!row.is_array() || row.size() != array->size() || array->size() > kMostGpus) {
        return fail(cat(where_, ": \"", key, "\" must be a square of true and false"));
      }
      std::vector<bool>& out = rows.emplace_back();
      for (const Json& cell : row) {
        if (!cell.is_boolean())
          return fail(cat(where_, ": \"", key, "\" must hold true and false"));
        out.push_back(cell.get<bool>());
      }
    }
  }

 private:
  template <typename T>
  void read(const Json& json, std::string where, T& fields) {
    Reader inner(json, std::move(where), status_);
    if (status_->ok()) describe(inner, fields);
  }
  void fail(std::string why) {
    if (status_->ok()) *status_ = Status::error(Code::kInvalidArgument, std::move(why));
  }
  template <typename T>
  void take(Result<std::optional<T>> got, T& out) {
    if (!status_->ok()) return;
    if (!got.ok()) *status_ = got.status();
    if (got.ok() && got->has_value()) out = std::move(**got);
  }
  const Json* member(const char* key) const {
    const auto it = status_->ok() ? json_.find(key) : json_.end();
    return it == json_.end() || it->is_null() ? nullptr : &*it;
  }
  const Json* array_of(const char* key) {
    const Json* inner = member(key);
    if (inner == nullptr || inner->is_array()) return inner;
    fail(cat(where_, ": \"", key, "\" must be an array"));
    return nullptr;
  }

  const Json& json_;
  const std::string where_;
  Status* status_;
};

}  // namespace

std::string to_json(const HostFacts& facts) {
  HostFacts copy = facts;
  Writer writer;
  describe(writer, copy);
  return writer.json.dump(2, ' ', false,
                          OrderedJson::error_handler_t::replace);  // a path need not be UTF-8
}

Result<HostFacts> parse_host_facts(std::string_view text) {
  SHOAL_ASSIGN_OR_RETURN(const Json json, parse_json(text, "host facts", {16, 1'000'000}));
  HostFacts facts;
  Status status;
  Reader reader(json, "host facts", &status);
  if (status.ok()) describe(reader, facts);
  if (!status.ok()) return status;
  return facts;
}

}  // namespace shoal
