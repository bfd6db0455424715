#include "runtime/transport/facts/host_facts_json.h"

#include <gtest/gtest.h>

#include "runtime/base/json.h"
#include "runtime/transport/facts/host_facts.h"

namespace shoal {
namespace {

/// Facts in which no field has its default value.
HostFacts unusual_facts() {
  HostFacts facts;
  facts.kernel = "6.1.0-18-amd64 \"quoted\" \\ \u00e4";
  facts.container = "podman";
  facts.can_mount = true;
  facts.page_bytes = 65536;
  facts.memory_total_bytes = 1LL << 40;
  facts.memory_available_bytes = 123456789012;
  facts.numa_nodes = 8;
  facts.dev_shm = {"/mnt/shm",
                   true,
                   true,
                   "tmpfs",
                   "rw,size=64k",
                   (1ULL << 44) + 27,
                   65536,
                   4096,
                   16,
                   15,
                   13,
                   8192,
                   28,
                   "killed",
                   {{"/dev/shm/big", 4096, 1000, 60, "me"}}};
  facts.memfd_error = 38;
  facts.cgroup = {
      1, {{"/sys/fs/cgroup/memory/a", 1 << 20, 4096, 1024, true, 1 << 19}, {"/", -1, 5, 0, false}}};
  facts.limits = {65536, 1 << 20, 1024, 4096, 1LL << 38};
  facts.pids = {"/sys/fs/cgroup/pids/a", 100, 17, 3};
  facts.proc_mounted = false;
  facts.cma = {true, 1, 2, 2, false};
  facts.loopback_ipv4 = facts.loopback_ipv6 = true;
  facts.loopback_error = 101;
  facts.local_ports = 4;
  facts.interfaces = {"lo", "eth0"};
  facts.gpu = {
      .count = 2,
      .driver_version = "535.104.05",
      .peers = {{true, false}, {false, true}},
      .asked = true,
      .ranks = 4,
      .ranks_per_gpu = 2,
      .module_path = "/opt/libshoal_cuda.so",
      .module_build_id = "1-abc",
      .module_architectures = "80-real 90-virtual",
      .cuda_runtime = 13000,
      .cuda_driver = 12020,
      .devices = {{"A", "0000:17:00.0", "GPU-1", "9.0", 1LL << 37, "no code for it", 1LL << 36}},
      .verdicts = {{1, 2, GpuPeerVerdict::Outcome::kCorrupt, "5 bytes"}},
      .error_at = GpuErrorAt::kFacts,
      .error = "cudaErrorNoDevice: none",
      .nccl_version = 22809,
      .nccl_path = "/usr/lib/libnccl.so.2",
      .nccl_error = "no such file",
      .cublas_version = "13.1.0",
      .cublas_path = "/usr/lib/libcublasLt.so.13",
      .cublas_error = "no such library"};
  facts.left_files = {{"/dev/shm/nccl-abc123", 33030532, 4294967295, LeftFileState::kStale}};
  facts.gather_ms = 4.625;
  return facts;
}

TEST(HostFactsJson, EveryFieldComesBack) {
  const HostFacts facts = unusual_facts();
  const Result<HostFacts> again = parse_host_facts(to_json(facts));
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_TRUE(*again == facts) << to_json(facts) << to_json(*again);
}

TEST(HostFactsJson, TheUnusualFactsAreUnusualInEveryField) {
  const Json unusual = Json::parse(to_json(unusual_facts())),
             usual = Json::parse(to_json(HostFacts()));
  for (const char* part : {"", "/dev_shm", "/limits", "/pids", "/cma", "/cgroup", "/gpu"}) {
    const Json &a = unusual.at(Json::json_pointer(part)), &b = usual.at(Json::json_pointer(part));
    for (const auto& [key, value] : a.items()) EXPECT_NE(value, b.at(key)) << part << "/" << key;
  }
}

TEST(HostFactsJson, WhatThereIsNotIsNull) {
  const Json none = Json::parse(to_json(HostFacts()));
  for (const char* field : {"/container",
                            "/memory_total_bytes",
                            "/memfd_error",
                            "/dev_shm/fs_type",
                            "/dev_shm/size_bytes",
                            "/dev_shm/free_bytes",
                            "/dev_shm/total_inodes",
                            "/dev_shm/free_inodes",
                            "/dev_shm/probed_bytes",
                            "/dev_shm/probe_errno",
                            "/cgroup/version",
                            "/limits/nofile",
                            "/pids/path",
                            "/pids/used",
                            "/cma/error",
                            "/cma/yama_scope",
                            "/gpu/error_at",
                            "/gpu/cuda_driver",
                            "/gpu/nccl_version",
                            "/gpu/ranks"})
    EXPECT_TRUE(none.at(Json::json_pointer(field)).is_null()) << field;
  HostFacts full;
  full.dev_shm.size_bytes = 4096;
  full.dev_shm.total_inodes = 1;
  full.pids.limit = 1;
  const Json some = Json::parse(to_json(full));
  for (const char* field : {"/dev_shm/free_bytes", "/dev_shm/free_inodes", "/pids/used"})
    EXPECT_EQ(some.at(Json::json_pointer(field)), 0) << field << " is a figure";
}

TEST(HostFactsJson, AbsentFieldsKeepTheirDefaultsAndUnknownOnesAreIgnored) {
  for (const char* text :
       {"{}", R"({"dev_shm": null, "cgroup": {"levels": null}})", R"({"later": [1], "gpu": {}})"}) {
    const Result<HostFacts> facts = parse_host_facts(text);
    ASSERT_TRUE(facts.ok()) << facts.status().to_string();
    EXPECT_TRUE(*facts == HostFacts()) << text;
  }
}

TEST(HostFactsJson, APathOfOtherBytesIsStillJson) {
  HostFacts facts;
  facts.left_files = {{"/dev/shm/nccl-\xff\xfe", 0, 0, LeftFileState::kUnknown}};
  EXPECT_TRUE(parse_host_facts(to_json(facts)).ok());
}

TEST(HostFactsJson, TheFirstWrongFieldIsNamed) {
  const std::pair<const char*, const char*> wrong[] = {
      {R"([])", "host facts"},
      {R"("x")", "host facts"},
      {R"({"kernel": 5})", "kernel"},
      {R"({"dev_shm": []})", "host facts.dev_shm"},
      {R"({"dev_shm": {"size_bytes": -1}})", "size_bytes"},
      {R"({"dev_shm": {"size_bytes": "64m"}})", "size_bytes"},
      {R"({"dev_shm": {"size_bytes": 1.5}})", "size_bytes"},
      {R"({"dev_shm": {"free_bytes": 9223372036854775807}})", "free_bytes"},
      {R"({"dev_shm": {"free_bytes": 18446744073709551615}})", "free_bytes"},
      {R"({"dev_shm": {"exists": 1}})", "exists"},
      {R"({"dev_shm": {"open_errno": 99999999999}})", "open_errno"},
      {R"({"cgroup": {"version": 3}})", "version"},
      {R"({"cgroup": {"levels": {}}})", "levels"},
      {R"({"cgroup": {"levels": [{}, 7]}})", "levels[1]"},
      {R"({"cgroup": {"levels": [{"limit_bytes": -2}]}})", "limit_bytes"},
      {R"({"limits": {"nofile": -5}})", "nofile"},
      {R"({"cma": {"yama_scope": 4}})", "yama_scope"},
      {R"({"interfaces": "lo"})", "interfaces"},
      {R"({"interfaces": ["lo", 1]})", "interfaces"},
      {R"({"gpu": {"peers": [[true]  , [true, false]]}})", "peers"},
      {R"({"gpu": {"peers": [[1]]}})", "peers"},
      {R"({"gpu": {"ranks_per_gpu": 0}})", "ranks_per_gpu"},
      {R"({"gpu": {"devices": [{"bytes": -1}]}})", "host facts.gpu.devices[0]"},
      {R"({"gpu": {"verdicts": [{"verdict": 1}]}})", "verdict"},
      {R"({"gpu": {"verdicts": [{"verdict": "okay"}]}})", "verdict"},
      {R"({"gpu": {"error_at": "somewhere"}})", "error_at"},
      {R"({"left_files": [{"state": "mine"}]})", "state"},
      {R"({"left_files": [{"uid": 4294967296}]})", "uid"},
      {R"({"gather_ms": -1})", "gather_ms"},
      {R"({"gather_ms": "fast"})", "gather_ms"},
      {R"({"page_bytes": 0})", "page_bytes"},
      {R"({"numa_nodes": 0})", "numa_nodes"},
      {R"({"cma": {"error": -1}, "kernel": 5})", "kernel"},
  };
  for (const auto& [text, name] : wrong) {
    const Status status = parse_host_facts(text).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << text;
    EXPECT_NE(status.to_string().find(name), std::string::npos)
        << text << ": " << status.to_string();
  }
}

TEST(HostFactsJson, HostileTextIsAnError) {
  const std::string whole = to_json(unusual_facts());
  for (size_t bytes = 0; bytes + 1 < whole.size(); bytes += 3) {
    EXPECT_EQ(parse_host_facts(whole.substr(0, bytes)).status().code(), Code::kInvalidArgument)
        << bytes;
  }
  EXPECT_FALSE(parse_host_facts(std::string(100'000, '[')).ok());
  EXPECT_FALSE(parse_host_facts(R"({"gather_ms": 1e999})").ok());
  EXPECT_FALSE(parse_host_facts("{\"kernel\": \"\xff\"}").ok());
  // If any one byte is changed, the result is an error or other facts, but never a crash.
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const char byte : {'\0', '"', '{', '9', '-'}) {
      std::string changed = whole;
      changed[at] = byte;
      [[maybe_unused]] const Result<HostFacts> facts = parse_host_facts(changed);
    }
  }
}

}  // namespace
}  // namespace shoal
