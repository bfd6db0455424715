#pragma once
#include <prometheus/metric_family.h>
#include <string>
#include <utility>
#include <vector>

#include "server/metrics/metric_table.h"
#include "server/serving/tally.h"

namespace shoal {

/// The values of all metrics at one moment, in the form that prometheus-cpp writes.
class FamilyList {
 public:
  using Labels = std::vector<std::pair<const char*, std::string>>;

  FamilyList();
  /// One value of a counter or gauge. labels: those of the table, in its order.
  void add(Metric metric, double value, const Labels& labels = {});
  /// One histogram.
  void add(Metric metric, const Tally& tally, const Labels& labels = {});

  /// Prometheus' text format, without the metrics that have no value.
  std::string text() const;

 private:
  prometheus::ClientMetric& new_sample(Metric metric, const Labels& labels);
  std::vector<prometheus::MetricFamily> families_;  // by Metric
};

}  // namespace shoal
