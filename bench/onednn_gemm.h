#pragma once
#include <memory>

namespace shoal {

/// The widest instructions that oneDNN may use.
enum class OnednnIsa { kAvx2, kAvx512, kAny };

/// A yardstick: y [m, n] (float32) = x [m, k] * w [n, k]^T by oneDNN on one thread, with the
/// weights in the layout that oneDNN prefers. Inputs are bf16 or float32. If the build has no
/// oneDNN, available() is false and run() does nothing.
class OnednnGemm {
 public:
  /// For all products. Only before the first one.
  static void limit(OnednnIsa isa);

  /// w is row-major [n, k] and of the element type. x is filled with a constant.
  OnednnGemm(int m, int n, int k, bool bf16, const void* w);
  ~OnednnGemm();
  bool available() const { return state_ != nullptr; }
  void run();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shoal
