// What a thread adds up for V channels of an image, a pixel at a time.
#ifndef MPSF_CHANNELS_H
#define MPSF_CHANNELS_H

// Sums of the distance to a shift, and of its square.
template <int V>
struct Spread {
  float shift[V], sum[V], squares[V];
};
template <int V, typename Pixel>
MPSF_FN Spread<V> spread_from(Pixel pixel) {
  Spread<V> s;
  for (int j = 0; j < V; ++j) {
    s.shift[j] = held_value(pixel, j);
    s.sum[j] = s.squares[j] = 0;
  }
  return s;
}
// The pixel that adds nothing.
template <typename T, int V>
MPSF_FN Held<T, V> shift_of(Spread<V> s) {
  Pack<T, V> pixel;
  for (int j = 0; j < V; ++j) pixel.v[j] = T(s.shift[j]);
  return held(pixel);
}
template <int V, typename Pixel>
MPSF_FN Spread<V> spread_with(Spread<V> s, Pixel pixel) {
  for (int j = 0; j < V; ++j) {
    const float d = held_value(pixel, j) - s.shift[j];
    s.sum[j] += d;
    s.squares[j] += d * d;
  }
  return s;
}

// What a neuron is applied to: (x - center) * slope + level.
template <int V>
struct Affine {
  Pack<float, V> center, slope, level;
};
template <typename T, int N, int V, typename Pixel>
MPSF_FN Pack<T, V> normalized(Pixel x, Affine<V> by, Activation known) {
  Pack<T, V> y;
  for (int j = 0; j < V; ++j) {
    y.v[j] = T(activated<N>((held_value(x, j) - by.center.v[j]) * by.slope.v[j] + by.level.v[j], known));
  }
  return y;
}
// Sums of the gradient g before the neuron, and of g * (x - center).
template <int V>
struct Pulls {
  float sum[V], dot[V];
};
template <int V>
MPSF_FN Pulls<V> no_pulls() {
  Pulls<V> s;
  for (int j = 0; j < V; ++j) s.sum[j] = s.dot[j] = 0;
  return s;
}
template <int N, int V, typename Pixel>
MPSF_FN Pulls<V> pulls_with(Pulls<V> s, Pixel dy, Pixel x, Affine<V> by, Activation known) {
  for (int j = 0; j < V; ++j) {
    const float off = held_value(x, j) - by.center.v[j];
    const float g = passed<N>(held_value(dy, j), off * by.slope.v[j] + by.level.v[j], known);
    s.sum[j] += g;
    s.dot[j] += g * off;
  }
  return s;
}

// of_g * g + of_x * (x - center) + lift.
template <int V>
struct Factors {
  Pack<float, V> of_g, of_x, lift;
};
template <typename T, int N, int V, typename Pixel>
MPSF_FN Pack<T, V> combined(Pixel dy, Pixel x, Factors<V> f, Affine<V> by, Activation known) {
  Pack<T, V> dx;
  for (int j = 0; j < V; ++j) {
    const float off = held_value(x, j) - by.center.v[j];
    const float g = passed<N>(held_value(dy, j), off * by.slope.v[j] + by.level.v[j], known);
    dx.v[j] = T(f.of_g.v[j] * g + (f.of_x.v[j] * off + f.lift.v[j]));
  }
  return dx;
}

#endif
