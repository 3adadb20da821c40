// 8 by 8 matrices, which the 32 lanes of a simdgroup hold, load, store and multiply together.
//
// Metal does not say which lane holds what, so bodies may not ask and there is no thread_elements() here. Every lane
// must make the same call with the same arguments: gpu_simd_agree tells the host what a lane called, and the host
// compares the lanes wherever they meet. A lane loads and stores its own two elements under the sanitizers' eyes, and
// has the host read the others, so that no lane waits: what must not change meanwhile is for the thread sanitizer.
#ifndef MSL_MATRIX_H
#define MSL_MATRIX_H
#include "msl_simd.h"

struct ulong2 {
  ulong x, y;
  ulong2(ulong both) : x(both), y(both) {}  // NOLINT: Metal's vectors take a number for all of their elements
  ulong2(ulong x, ulong y) : x(x), y(y) {}
};

namespace metal {

template <typename V, int Cols, int Rows = Cols>
struct simdgroup_matrix {
  static_assert(Rows == 8 && Cols == 8, "Metal has 8 by 8 matrices only");
  V at[8][8];
  bool whole;  // whether this lane knows every element, or only the two that it owns
  simdgroup_matrix() : whole(true) { __builtin_memset(at, 0xff, sizeof at); }
  explicit simdgroup_matrix(V diagonal) : whole(true) {
    for (int i = 0; i < 64; ++i) at[i / 8][i % 8] = i % 9 == 0 ? diagonal : V(0.0f);
  }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

}  // namespace metal

namespace shim {

// The first of the two neighbours that a lane owns.
inline uint own_row(uint lane) { return (lane / 4 & 4) + lane / 2 % 4; }
inline uint own_col(uint lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }

// Where a matrix lies.
struct Place {
  ulong down, across;  // from an element to the next
};
inline Place place(int line, const volatile void* at, ulong stride, ulong2 origin, bool transposed) {
  const ulong said[] = {reinterpret_cast<ulong>(at), stride, origin.x, origin.y, ulong(transposed)};
  gpu_simd_agree(line, said, sizeof said / sizeof *said);
  if (transposed && (origin.x || origin.y)) gpu_refuse(line, "which way the origin of a transposed matrix counts");
  return transposed ? Place{1, stride} : Place{stride, 1};
}

// With every element known, which costs a meeting of the lanes where they are results.
template <typename V>
metal::simdgroup_matrix<V, 8, 8> whole(const metal::simdgroup_matrix<V, 8, 8>& m, int line) {
  if (m.whole) return m;
  struct Pair {
    V held[2];
  };
  const uint r = own_row(gpu_lane()), c = own_col(gpu_lane());
  const Lanes<Pair> lanes = exchange(Pair{{m.at[r][c], m.at[r][c + 1]}}, line);
  metal::simdgroup_matrix<V, 8, 8> all;
  for (uint lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 2; ++i) all.at[own_row(lane)][own_col(lane) + i] = lanes.value[lane].held[i];
  }
  return all;
}

}  // namespace shim

namespace metal {

template <typename V, int Cols, int Rows = Cols>
simdgroup_matrix<V, Cols, Rows> make_filled_simdgroup_matrix(V value) {
  simdgroup_matrix<V, Cols, Rows> m;
  for (int i = 0; i < 64; ++i) m.at[i / 8][i % 8] = value;
  return m;
}

template <typename V>
void simdgroup_load(simdgroup_matrix<V, 8, 8>& m, const V* from, ulong stride = 8, ulong2 origin = 0,
                    bool transposed = false, int line = __builtin_LINE()) {
  const shim::Place to = shim::place(line, from, stride, origin, transposed);
  const uint r = shim::own_row(gpu_lane()), c = shim::own_col(gpu_lane());
  from += origin.y * stride + origin.x;
  V own[2];
  for (int i = 0; i < 2; ++i) own[i] = from[r * to.down + (c + i) * to.across];
  gpu_peek_matrix(from, sizeof(V), to.down, to.across, m.at);
  for (int i = 0; i < 2; ++i) m.at[r][c + i] = own[i];
  m.whole = true;
}

template <typename V>
void simdgroup_store(const simdgroup_matrix<V, 8, 8>& m, V* to, ulong stride = 8, ulong2 origin = 0,
                     bool transposed = false, int line = __builtin_LINE()) {
  const shim::Place in = shim::place(line, to, stride, origin, transposed);
  const uint r = shim::own_row(gpu_lane()), c = shim::own_col(gpu_lane());
  to += origin.y * stride + origin.x;
  for (int i = 0; i < 2; ++i) to[r * in.down + (c + i) * in.across] = m.at[r][c + i];
}

// d = a b + c
template <typename D, typename A, typename B, typename C>
void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                   const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c,
                                   int line = __builtin_LINE()) {
  if (!a.whole || !b.whole) {
    return simdgroup_multiply_accumulate(d, shim::whole(a, line), shim::whole(b, line), c, line);
  }
  gpu_simd_agree(line, nullptr, 0);
  const uint r = shim::own_row(gpu_lane()), first = shim::own_col(gpu_lane());
  float sum[2] = {float(c.at[r][first]), float(c.at[r][first + 1])};
  for (int k = 0; k < 8; ++k) {
    for (int i = 0; i < 2; ++i) sum[i] += float(a.at[r][k]) * float(b.at[k][first + i]);
  }
  for (int i = 0; i < 2; ++i) d.at[r][first + i] = D(sum[i]);
  d.whole = false;
}

}  // namespace metal

#endif
