// Derivatives of neurons, from what they made.
#include "channels.h"

namespace mpsf::MPSF_ISA {

void neuron(const Call&) {}
void neuron_grad(const Call&) {}
void neuron_curve(const Call&) {}

void neuron_pull(const Call& call) {
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    using A = Acc<T>;
    constexpr int L = lanes<A>;
    const T *dy = data<T>(call.in[0]), *y = data<T>(call.in[1]);
    T* dz = data<T>(call.out[0]);
    const int64_t size = call.out[0].size;
    const bool streamed = call.out[0].streamed;
    parallel_for((size + kChunkElements - 1) / kChunkElements, [&](int64_t chunk) {
      const int64_t end = smaller(size, (chunk + 1) * kChunkElements);
      for (int64_t i = chunk * kChunkElements; i < end; i += L) {
        const int n = static_cast<int>(smaller(L, end - i));
        store_result(dz + i, load_some(y + i, n) > 0 ? load_some(dy + i, n) : Vec<A>{}, n, streamed && n == L);
      }
      stream_end();
    });
  });
}

}  // namespace mpsf::MPSF_ISA
