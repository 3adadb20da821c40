// dx = S * y * (dy - sum of dy * y), S = 1 or -1, over rows that lie in one piece, with L dy - exp(y) * (sum of dy). R
// threads of a simdgroup share a row, each with M packs of V elements of it, and have B rows under way together. Of 16
// bits, y adds up to 1 but for its roundings, and those times dy would be most of what is left near an entry of 1: there
// dy is taken from its mean, which changes nothing else.
#include "shared/vector_load.h"
const int length = y_shape[1], lane = int(thread_position_in_grid.x) % R;
const long rows = y_shape[0], stride = threads_per_grid.x / R;
const bool wide = aligned<V>(y), wide_dy = aligned<V>(dy);
// As often for all threads, which meet in the shuffles.
for (long first = 0; first < rows; first += B * stride) {
  const long own = first + thread_position_in_grid.x / R;
  Pack<T, V> g[B * M], came[B * M];
  for (int b = 0; b < B; ++b) {
    const long row = own + b * stride;
    for (int p = 0; p < M; ++p) {
      const int i = (p * R + lane) * V;
      const long at = row < rows && i < length ? row * length + i : 0;
      g[b * M + p] = load<V>(dy + at, wide_dy);
      came[b * M + p] = load<V>(y + at, wide);
    }
  }
  for (int b = 0; b < B; ++b) {
    const long row = own + b * stride;
    float sum = 0, centre = 0;
    for (int pass = 0; pass < (!L && sizeof(T) == 2 ? 2 : 1); ++pass) {
      centre = sum;
      sum = 0;
      for (int p = 0; p < M; ++p) {
        if ((p * R + lane) * V >= length) continue;
        const int pack = b * M + p;
        for (int j = 0; j < V; ++j) sum += (float(g[pack].v[j]) - centre) * (L ? 1.0f : float(came[pack].v[j]));
      }
      for (int m = R / 2; m > 0; m /= 2) sum += simd_shuffle_xor(sum, m);
    }
    for (int p = 0; p < M; ++p) {
      const int i = (p * R + lane) * V;
      if (row >= rows || i >= length) continue;
      Pack<T, V> out;
      for (int j = 0; j < V; ++j) {
        const float a = float(g[b * M + p].v[j]), c = float(came[b * M + p].v[j]);
        out.v[j] = T(L ? a - exp(c) * sum : S * c * (a - centre - sum));
      }
      store(dx + row * length + i, out);
    }
  }
}
