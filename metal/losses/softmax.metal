// y = softmax of S * x, S = 1 or -1, in rows that lie in one piece, with L its logarithm. R threads of a simdgroup
// share a row, each with M packs of V elements of it, and have B rows under way together.
#include "shared/vector_load.h"
#include "losses/online_softmax.h"
const int length = x_shape[1], lane = int(thread_position_in_grid.x) % R;
const long rows = x_shape[0], stride = threads_per_grid.x / R;
const bool wide = aligned<V>(x);
// As often for all threads, which meet in the shuffles.
for (long first = 0; first < rows; first += B * stride) {
  const long own = first + thread_position_in_grid.x / R;
  Pack<T, V> in[B * M];
  for (int b = 0; b < B; ++b) {
    const long row = own + b * stride;
    for (int p = 0; p < M; ++p) {
      const int i = (p * R + lane) * V;
      in[b * M + p] = load<V>(x + (row < rows && i < length ? row * length + i : 0), wide);
    }
  }
  for (int b = 0; b < B; ++b) {
    const long row = own + b * stride;
    float v[M * V], most = minus_infinity(), sum = 0;
    for (int p = 0; p < M; ++p) {
      for (int j = 0; j < V; ++j) {
        v[p * V + j] = (p * R + lane) * V < length ? S * float(in[b * M + p].v[j]) : minus_infinity();
        most = max(most, v[p * V + j]);
      }
    }
    for (int m = R / 2; m > 0; m /= 2) most = max(most, simd_shuffle_xor(most, m));
    for (int k = 0; k < M * V; ++k) {
      v[k] -= most;
      const float e = exp(v[k]);
      if (!L) v[k] = e;
      sum += e;
    }
    for (int m = R / 2; m > 0; m /= 2) sum += simd_shuffle_xor(sum, m);
    const float last = L ? log(sum) : 1 / sum;
    for (int p = 0; p < M; ++p) {
      const int i = (p * R + lane) * V;
      if (row >= rows || i >= length) continue;
      Pack<T, V> out;
      for (int j = 0; j < V; ++j) out.v[j] = T(L ? v[p * V + j] - last : v[p * V + j] * last);
      store(y + row * length + i, out);
    }
  }
}
