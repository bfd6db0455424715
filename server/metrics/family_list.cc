#include "server/metrics/family_list.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <prometheus/text_serializer.h>

namespace shoal {
namespace {

prometheus::MetricType type_of(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return prometheus::MetricType::Counter;
    case MetricKind::kGauge:
      return prometheus::MetricType::Gauge;
    case MetricKind::kHistogram:
      return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

}  // namespace

FamilyList::FamilyList() {
  for (const MetricInfo& info : metric_table())
    families_.push_back({info.name, info.help, type_of(info.kind), {}});
}

prometheus::ClientMetric& FamilyList::new_sample(Metric metric, const Labels& labels) {
  prometheus::ClientMetric& sample = families_[static_cast<size_t>(metric)].metric.emplace_back();
  for (const auto& [name, value] : labels) sample.label.push_back({name, value});
  return sample;
}

void FamilyList::add(Metric metric, double value, const Labels& labels) {
  prometheus::ClientMetric& sample = new_sample(metric, labels);
  sample.counter.value = value;
  sample.gauge.value = value;
}

void FamilyList::add(Metric metric, const Tally& tally, const Labels& labels) {
  prometheus::ClientMetric::Histogram& histogram = new_sample(metric, labels).histogram;
  histogram.sample_count = tally.count();
  histogram.sample_sum = tally.sum();
  uint64_t below = 0;
  // The library adds the range without an end.
  for (size_t i = 0; i < tally.bounds().size(); ++i)
    histogram.bucket.push_back({below += tally.counts()[i], tally.bounds()[i]});
}

std::string FamilyList::text() const {
  std::vector<prometheus::MetricFamily> with_values;
  std::copy_if(families_.begin(), families_.end(), std::back_inserter(with_values),
               [](const prometheus::MetricFamily& family) { return !family.metric.empty(); });
  return prometheus::TextSerializer().Serialize(with_values);
}

}  // namespace shoal
