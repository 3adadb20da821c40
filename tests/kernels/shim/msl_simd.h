// What the 32 lanes of a simdgroup do together.
#ifndef MSL_SIMD_H
#define MSL_SIMD_H

namespace shim {

template <typename V>
struct Lanes {
  V value[32];
  uint active;
  bool has(uint lane) const { return lane < 32 && (active >> lane & 1); }
};

template <typename V>
Lanes<V> exchange(V value, int line) {
  static_assert(sizeof(V) <= 16, "lanes exchange at most sixteen bytes");
  Lanes<V> lanes;
  lanes.active = gpu_simd_exchange(line, &value, sizeof value, lanes.value);
  return lanes;
}

// Halves fold onto halves, as the hardware's tree does; lanes that left the kernel take no part.
template <typename V, typename Fold>
V fold(V value, int line, Fold both) {
  Lanes<V> lanes = exchange(value, line);
  for (uint width = 16; width > 0; width /= 2) {
    for (uint lane = 0; lane < width; ++lane) {
      if (!lanes.has(lane + width)) continue;
      lanes.value[lane] =
          lanes.has(lane) ? both(lanes.value[lane], lanes.value[lane + width]) : lanes.value[lane + width];
      lanes.active |= 1u << lane;
    }
  }
  return lanes.value[0];
}

// The value of another lane. Metal leaves it undefined where that lane does not exist; here it is the poison.
template <typename V>
V from_lane(V value, uint lane, int line) {
  const Lanes<V> lanes = exchange(value, line);
  V poison;
  __builtin_memset(&poison, 0xff, sizeof poison);
  return lanes.has(lane) ? lanes.value[lane] : poison;
}

}  // namespace shim

namespace metal {

template <typename V>
V simd_sum(V value, int line = __builtin_LINE()) {
  return shim::fold(value, line, [](V a, V b) { return V(a + b); });
}
template <typename V>
V simd_max(V value, int line = __builtin_LINE()) {
  return shim::fold(value, line, [](V a, V b) { return a > b ? a : b; });
}
template <typename V>
V simd_min(V value, int line = __builtin_LINE()) {
  return shim::fold(value, line, [](V a, V b) { return a < b ? a : b; });
}

template <typename V>
V simd_shuffle(V value, ushort lane, int line = __builtin_LINE()) {
  return shim::from_lane(value, lane, line);
}
template <typename V>
V simd_broadcast(V value, ushort lane, int line = __builtin_LINE()) {
  return shim::from_lane(value, lane, line);
}
template <typename V>
V simd_shuffle_xor(V value, ushort mask, int line = __builtin_LINE()) {
  return shim::from_lane(value, gpu_lane() ^ mask, line);
}
template <typename V>
V simd_shuffle_down(V value, ushort delta, int line = __builtin_LINE()) {
  return shim::from_lane(value, gpu_lane() + delta, line);
}
template <typename V>
V simd_shuffle_up(V value, ushort delta, int line = __builtin_LINE()) {
  return shim::from_lane(value, gpu_lane() - delta, line);
}

// An 8 by 8 matrix; each lane holds two neighbours of a row, in Apple's order.
template <typename V, int Rows, int Cols>
struct simdgroup_matrix {
  static_assert(Rows == 8 && Cols == 8, "Metal has 8 by 8 matrices only");
  V held[2];
  static uint row(uint lane) { return (lane / 4 & 4) + lane / 2 % 4; }
  static uint col(uint lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(V value) : held{value, value} {}
  V* thread_elements() { return held; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;

template <typename V>
void simdgroup_load(simdgroup_matrix<V, 8, 8>& m, const V* from, ulong stride = 8) {
  for (int i = 0; i < 2; ++i) m.held[i] = from[m.row(gpu_lane()) * stride + m.col(gpu_lane()) + i];
}
template <typename V>
void simdgroup_store(simdgroup_matrix<V, 8, 8> m, V* to, ulong stride = 8) {
  for (int i = 0; i < 2; ++i) to[m.row(gpu_lane()) * stride + m.col(gpu_lane()) + i] = m.held[i];
}

// Every element of a matrix, for one lane.
template <typename V>
void all_elements(simdgroup_matrix<V, 8, 8> m, V (&all)[8][8], int line) {
  struct Pair {
    V held[2];
  };
  const shim::Lanes<Pair> lanes = shim::exchange(Pair{{m.held[0], m.held[1]}}, line);
  for (uint lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 2; ++i) all[m.row(lane)][m.col(lane) + i] = lanes.value[lane].held[i];
  }
}

// d = a b + c
template <typename D, typename A, typename B, typename C>
void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                   simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c,
                                   int line = __builtin_LINE()) {
  A left[8][8];
  B right[8][8];
  all_elements(a, left, line);
  all_elements(b, right, line);
  for (int i = 0; i < 2; ++i) {
    float sum = float(c.held[i]);
    for (int k = 0; k < 8; ++k) sum += float(left[d.row(gpu_lane())][k]) * float(right[k][d.col(gpu_lane()) + i]);
    d.held[i] = D(sum);
  }
}

}  // namespace metal

#endif
