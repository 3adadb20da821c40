// What a thread adds up for V channels of an image, a pixel at a time.
#ifndef MPSF_CHANNEL_SUMS_H
#define MPSF_CHANNEL_SUMS_H
#include "shared/functions.h"
#include "shared/vector_load.h"
// Behind the functions that it uses.
#include "activation/activations.h"

// Sums of the distance to a shift, and of its square.
template <int V>
struct Spread {
  float shift[V], sum[V], squares[V];
};
template <int V, typename Pixel>
MPSF_FN Spread<V> spread_from(Pixel pixel) {
  Spread<V> s;
  for (int j = 0; j < V; ++j) {
    s.shift[j] = staged_value(pixel, j);
    s.sum[j] = s.squares[j] = 0;
  }
  return s;
}
// The pixel that adds nothing.
template <typename T, int V>
MPSF_FN Staged<T, V> shift_of(Spread<V> s) {
  Pack<T, V> pixel;
  for (int j = 0; j < V; ++j) pixel.v[j] = T(s.shift[j]);
  return held(pixel);
}
template <int V, typename Pixel>
MPSF_FN Spread<V> spread_with(Spread<V> s, Pixel pixel) {
  for (int j = 0; j < V; ++j) {
    const float d = staged_value(pixel, j) - s.shift[j];
    s.sum[j] += d;
    s.squares[j] += d * d;
  }
  return s;
}

// No pixel yet, with the same shift.
template <int V>
MPSF_FN Spread<V> none_of(Spread<V> s) {
  for (int j = 0; j < V; ++j) s.sum[j] = s.squares[j] = 0;
  return s;
}
template <int V>
MPSF_FN Spread<V> both(Spread<V> s, Spread<V> more) {
  for (int j = 0; j < V; ++j) {
    s.sum[j] += more.sum[j];
    s.squares[j] += more.squares[j];
  }
  return s;
}
// The same of `count` pixels, if there are more to come, from another shift: their mean, as far as T has it. The first
// pixel may be far from all that follow, and then every one would cost digits.
template <typename T, int V>
MPSF_FN Spread<V> shifted(Spread<V> s, float count, bool more) {
  if (!more) return s;
  const float share = 1 / count;
  for (int j = 0; j < V; ++j) {
    const float shift = float(T(s.shift[j] + s.sum[j] * share)), by = shift - s.shift[j];
    s.squares[j] += by * (count * by - 2 * s.sum[j]);
    s.sum[j] -= count * by;
    s.shift[j] = shift;
  }
  return s;
}

// What a neuron is applied to: (x - center) * slope + level.
template <int V>
struct Affine {
  Pack<float, V> center, slope, level;
};
// And to its sum with another image's pixel, if A.
template <typename T, int N, int A, int V, typename Pixel>
MPSF_FN Pack<T, V> normalized(Pixel x, Pixel added, Affine<V> by, ActivationParams known) {
  Pack<T, V> y;
  for (int j = 0; j < V; ++j) {
    const float z = (staged_value(x, j) - by.center.v[j]) * by.slope.v[j] + by.level.v[j];
    y.v[j] = T(activated<N>(A ? z + staged_value(added, j) : z, known));
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
MPSF_FN Pulls<V> pulls_with(Pulls<V> s, Pixel dy, Pixel x, Affine<V> by, ActivationParams known) {
  for (int j = 0; j < V; ++j) {
    const float off = staged_value(x, j) - by.center.v[j];
    const float g = passed<N>(staged_value(dy, j), off * by.slope.v[j] + by.level.v[j], known);
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
MPSF_FN Pack<T, V> combined(Pixel dy, Pixel x, Factors<V> f, Affine<V> by, ActivationParams known) {
  Pack<T, V> dx;
  for (int j = 0; j < V; ++j) {
    const float off = staged_value(x, j) - by.center.v[j];
    const float g = passed<N>(staged_value(dy, j), off * by.slope.v[j] + by.level.v[j], known);
    dx.v[j] = T(f.of_g.v[j] * g + (f.of_x.v[j] * off + f.lift.v[j]));
  }
  return dx;
}

#endif
