#pragma once
#include <memory>

namespace shoal {

/// y [m, n] (float32) = x [m, k] * w [n, k]^T by oneDNN on one thread, its weights reordered as it
/// likes: a yardstick. bf16 or float32 inputs. Without oneDNN in the build, run() does nothing.
class OnednnGemm {
 public:
  /// w: row-major [n, k], of the element type. Inputs are made up.
  OnednnGemm(int m, int n, int k, bool bf16, const void* w);
  ~OnednnGemm();
  bool available() const { return state_ != nullptr; }
  void run();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shoal
