#include <algorithm>
#include <filesystem>
#include <gtest/gtest.h>
#include <map>

#include "runtime/base/json.h"
#include "runtime/transport/facts/host_facts.h"
#include "runtime/transport/facts/host_facts_json.h"
#include "runtime/transport/needs/budget.h"
#include "runtime/transport/rungs/rung.h"

namespace shoal {
namespace {

struct Place {
  HostFacts facts;
  int ranks = 0;
  BudgetOptions options;
  std::string rung;
  std::map<std::string, std::string> refused;  ///< from rung to error code
};

/// The parser would ignore a misspelt field, and the facts would differ from what the file says. So
/// such a field is an error here.
void expect_known_fields(const Json& written, const Json& known) {
  for (const auto& [key, value] : written.items()) {
    ASSERT_TRUE(known.contains(key)) << "unknown fact " << key;
    if (value.is_object()) expect_known_fields(value, known[key]);
    if (value.is_array() && !value.empty() && value[0].is_object())
      expect_known_fields(value[0], known[key][0]);
  }
}

/// Reads a file in the format of tests/data/host_facts/README.md. If one of our files does not
/// follow it, this throws and the test fails.
Place read_place(const std::string& path) {
  const Json json = Json::parse(*read_file(path, 1 << 20));
  Place place;
  const Result<HostFacts> facts = parse_host_facts(json.at("facts").dump());
  EXPECT_TRUE(facts.ok()) << facts.status().to_string();
  if (facts.ok()) place.facts = *facts;
  expect_known_fields(json.at("facts"), Json::parse(to_json(place.facts)));
  place.ranks = json.at("ranks").get<int>();
  const Json options = json.value("options", Json::object());
  place.options.headroom_bytes = options.value("headroom_bytes", int64_t{0});
  place.options.reserved_bytes = options.value("reserved_bytes", int64_t{0});
  place.rung = json.at("expect").at("rung").get<std::string>();
  place.refused = json.at("expect").at("refused").get<std::map<std::string, std::string>>();
  return place;
}

std::vector<std::string> recorded_places() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(SHOAL_TEST_DATA "/host_facts")) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class RecordedPlace : public testing::TestWithParam<std::string> {};

TEST_P(RecordedPlace, TheLadderStopsWhereItShould) {
  const Place place = read_place(cat(SHOAL_TEST_DATA "/host_facts/", GetParam(), ".json"));
  std::string chosen;
  std::map<std::string, std::string> refused;
  for (const Rung& rung : rungs()) {
    Status status = check_budget(rung.need(place.ranks), place.facts, place.options);
    if (status.ok()) status = rung.probe({place.ranks, place.facts});
    if (status.ok()) {
      chosen = rung.name;
      break;
    }
    refused[rung.name] = code_name(status.code());
    EXPECT_FALSE(status.message().empty());
    RecordProperty(rung.name, status.to_string());
  }
  EXPECT_EQ(chosen, place.rung);
  EXPECT_EQ(refused, place.refused);
}

INSTANTIATE_TEST_SUITE_P(All, RecordedPlace, testing::ValuesIn(recorded_places()),
                         [](const auto& place) { return place.param; });

/// The figures from which the free bytes of the recorded files were chosen.
TEST(RecordedPlaces, NeedsAreWholePagesOfTheFormula) {
  for (const int ranks : {2, 3, 4, 8, 16}) {
    const auto pages = [ranks](int64_t slot) {
      return (ranks * (256 + 2 * slot) + 4095) / 4096 * 4096;
    };
    EXPECT_EQ(find_rung("shm")->need(ranks).dev_shm_bytes(), pages(262144));
    EXPECT_EQ(find_rung("shm-lean")->need(ranks).dev_shm_bytes(), pages(4096));
    EXPECT_EQ(find_rung("memfd")->need(ranks).dev_shm_bytes(), 0);
    EXPECT_EQ(find_rung("memfd")->need(ranks).memory_bytes(), pages(262144));
    EXPECT_EQ(find_rung("cma")->need(ranks).dev_shm_bytes(), 0);
    EXPECT_GT(find_rung("cma")->need(ranks).memory_bytes(), 4096);
    EXPECT_EQ(find_rung("tcp")->need(ranks).memory_bytes(), 0);
  }
}

}  // namespace
}  // namespace shoal
