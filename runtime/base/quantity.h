#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace shoal {

/// "1052672 B (1.0 MiB)"; below 64 KiB the bytes alone, below 1 MiB in KiB, and from 10 GiB on in
/// GiB.
std::string bytes_text(int64_t bytes);

/// What bytes_text() has in its parentheses, for tables: "1.0 MiB". Empty if it has none.
std::string rounded_bytes_text(int64_t bytes);

/// A rate or a number of operations with a metric prefix and three significant digits, such as
/// "283 MB/s" of 2.83e8 and "B/s".
std::string metric_text(double value, std::string_view unit);

/// A size that people like to write and that holds this many bytes: the next power of two from
/// 1 MiB on, or from 1 GiB on the next whole GiB. "2m", "64m", "3g", as docker and mount read it.
std::string round_size(int64_t bytes);

/// The same as Kubernetes reads it: "2Mi", "3Gi".
std::string round_quantity(int64_t bytes);

/// "5 s", "12 min", "3 h" or "8 days".
std::string age_text(int64_t seconds);

}  // namespace shoal
