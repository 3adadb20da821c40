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

}  // namespace metal

#endif
