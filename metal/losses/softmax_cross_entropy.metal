// Softmax cross-entropy of images (n, pixels, classes): gradient = weight * (softmax - target), and the sums of the
// losses of images in parts: partial[part, image]. R threads of a simdgroup own a part and share its pixels one by one.
#include "shared/vector_load.h"
#include "losses/online_softmax.h"
#include "losses/losses.h"
#include "losses/params.h"
const LossLaunch launch = params_as<LossLaunch>(params);
const int classes = y_shape[2], pixels = y_shape[1], parts = launch.parts;
const long group = thread_position_in_grid.x / R, image = group / parts;
const int part = group % parts, lane = int(thread_position_in_grid.x) % R;
const LossNumbers<float> told = launch.numbers;
const bool wide = aligned<V>(y);
float sum = 0;
// As often for all threads, which meet in the shuffles. Unsigned counters may go past 2^31 before they end.
for (long first = 0; first < pixels; first += parts) {
  const long pixel = image * pixels + first + part;
  const uint end = image < y_shape[0] && first + part < pixels ? classes : 0;
  Exponentials own = {minus_infinity(), 0};
  for (uint c = lane * V; c < end; c += R * V) {
    own = grown(own, widened(load<V>(y + pixel * classes + c, wide)));
  }
  for (int m = R / 2; m > 0; m /= 2) {
    own = joined(own, Exponentials{simd_shuffle_xor(own.most, m), simd_shuffle_xor(own.sum, m)});
  }
  const float log_sum = log(own.sum), share = 1 / own.sum;
  for (uint c = lane * V; c < end; c += R * V) {
    const Given<V> in = given<L, W, V>(y, target, weights, pixel * classes + c, pixel, c, classes, told);
    Pack<T, V> out;
    for (int j = 0; j < V; ++j) {
      const float less = in.y[j] - own.most;
      out.v[j] = T(in.w[j] * (exp(less) * share - in.t[j]));
      sum -= in.w[j] * weighed(in.t[j], less - log_sum);
    }
    store(gradient + pixel * classes + c, out);
  }
}
for (int m = R / 2; m > 0; m /= 2) sum += simd_shuffle_xor(sum, m);
if (lane == 0 && image < y_shape[0]) partial[part * long(y_shape[0]) + image] = sum * told.factor;
