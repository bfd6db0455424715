#include "bench/onednn_gemm.h"

#if defined(SHOAL_BENCH_ONEDNN)
#include <cstring>
#include <dnnl.hpp>
#include <omp.h>
#endif

namespace shoal {

#if defined(SHOAL_BENCH_ONEDNN)

struct OnednnGemm::State {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul matmul;
  dnnl::memory x, w, y;
};

void OnednnGemm::limit(OnednnIsa isa) {
  if (isa == OnednnIsa::kAny) return;
  dnnl::set_max_cpu_isa(isa == OnednnIsa::kAvx2 ? dnnl::cpu_isa::avx2 : dnnl::cpu_isa::avx512_core);
}

OnednnGemm::OnednnGemm(int m, int n, int k, bool bf16, const void* w) {
  using Tag = dnnl::memory::format_tag;
  using Desc = dnnl::memory::desc;
  omp_set_num_threads(1);
  const auto type = bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  state_ = std::make_unique<State>();
  const Desc x_desc({m, k}, type, Tag::ab), plain_w({k, n}, type, Tag::ba),
      any_w({k, n}, type, Tag::any);
  const Desc y_desc({m, n}, dnnl::memory::data_type::f32, Tag::ab);
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(x_desc, any_w, y_desc),
                                                 state_->engine);
  state_->matmul = dnnl::matmul(description);
  state_->x = dnnl::memory(x_desc, state_->engine);
  state_->y = dnnl::memory(y_desc, state_->engine);
  state_->w = dnnl::memory(description.weights_desc(), state_->engine);
  std::memset(state_->x.get_data_handle(), 0x3C, x_desc.get_size());
  dnnl::memory source(plain_w, state_->engine, const_cast<void*>(w));
  dnnl::reorder(source, state_->w).execute(state_->stream, source, state_->w);
  state_->stream.wait();
}

void OnednnGemm::run() {
  state_->matmul.execute(
      state_->stream,
      {{DNNL_ARG_SRC, state_->x}, {DNNL_ARG_WEIGHTS, state_->w}, {DNNL_ARG_DST, state_->y}});
  state_->stream.wait();
}

#else

struct OnednnGemm::State {};
void OnednnGemm::limit(OnednnIsa) {}
OnednnGemm::OnednnGemm(int, int, int, bool, const void*) {}
void OnednnGemm::run() {}

#endif

OnednnGemm::~OnednnGemm() = default;

}  // namespace shoal
