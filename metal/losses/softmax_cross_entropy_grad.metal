// Gradients of softmax cross-entropy of pixels: weight * (softmax - target), or with X the derivative softmax * (sum of
// weight * target) - weight * target, times the factor and, with X = 2, that of the image. R threads of a simdgroup share
// a pixel.
#include "shared/vector_load.h"
#include "losses/online_softmax.h"
#include "losses/losses.h"
#include "losses/params.h"
const int classes = y_shape[2], lane = int(thread_position_in_grid.x) % R;
const long pixels = y_shape[0] * long(y_shape[1]), stride = threads_per_grid.x / R;
const LossNumbers<float> told = params_as<LossNumbers<float>>(params);
// As often for all threads, which meet in the shuffles. Unsigned counters may go past 2^31 before they end.
for (long first = 0; first < pixels; first += stride) {
  const long pixel = first + thread_position_in_grid.x / R;
  const uint end = pixel < pixels ? classes : 0;
  Exponentials own = {minus_infinity(), 0};
  float all = 0;
  for (uint c = lane * V; c < end; c += R * V) {
    const Given<V> in = given<L, W, V>(y, target, weights, pixel * classes + c, pixel, c, classes, told);
    Pack<float, V> more;
    for (int j = 0; j < V; ++j) {
      more.v[j] = in.y[j];
      all += in.w[j] * in.t[j];
    }
    own = grown(own, more);
  }
  for (int m = R / 2; m > 0; m /= 2) {
    own = joined(own, Exponentials{simd_shuffle_xor(own.most, m), simd_shuffle_xor(own.sum, m)});
    all += simd_shuffle_xor(all, m);
  }
  const float share = 1 / own.sum;
  for (uint c = lane * V; c < end; c += R * V) {
    const Given<V> in = given<L, W, V>(y, target, weights, pixel * classes + c, pixel, c, classes, told);
    const float factor = X == 2 ? told.factor * float(scales[pixel / y_shape[1]]) : told.factor;
    Pack<T, V> out;
    for (int j = 0; j < V; ++j) {
      const float p = exp(in.y[j] - own.most) * share;
      out.v[j] = T(X > 0 ? (p * all - in.w[j] * in.t[j]) * factor : in.w[j] * (p - in.t[j]));
    }
    store(gradient + pixel * classes + c, out);
  }
}
