// Non-maximum suppression: of boxes by descending score, each that is left suppresses those after it that overlap it by
// more than a threshold. Results are the numbers of those that are kept, -1 behind them, and how many these are. What a
// box is, and what an overlap, mpsfunc/losses/overlaps.py says: along each axis of a box its begin, its end, its length
// and a power of two that brings the length near 1. Overlaps are rounded as they are there, for which the file is
// compiled without fused products. An image has one thread.
#include "kernels/vector/channels.h"
#include "losses/params.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

// The boxes of an image along one axis.
template <typename A>
struct Side {
  const A *low, *high, *length, *fit;

  Side(const A* numbers, int64_t step) : low(numbers), high(low + step), length(high + step), fit(length + step) {}
};

// The length that box i has in common with so many boxes from j on; beyond 0 only where they meet.
template <typename A>
MPSF_INLINE Vec<A> common(const Side<A>& side, int64_t i, int64_t j, int n) {
  const Vec<A> low = load_some(side.low + j, n), high = load_some(side.high + j, n);
  return (side.high[i] < high ? splat(side.high[i]) : high) - (side.low[i] > low ? splat(side.low[i]) : low);
}

// By which both lengths are multiplied, so that no area overflows or vanishes.
template <typename A>
MPSF_INLINE Vec<A> factor(const Side<A>& side, int64_t i, int64_t j, int n) {
  const Vec<A> fit = load_some(side.fit + j, n);
  return side.fit[i] < fit ? splat(side.fit[i]) : fit;
}

template <typename A>
class Suppression {
 public:
  Suppression(const A* sides, int64_t step, const int64_t* classes, int64_t count, A threshold)
      : across_(sides, step), down_(sides + 4 * step, step), classes_(classes), count_(count), threshold_(threshold) {}

  // Writes which boxes are kept, of those that are not 0 in `left`, and returns how many: so many at most.
  int64_t run(A* left, uint32_t* kept, int64_t most) const {
    int64_t found = 0;
    for (int64_t i = 0; i < count_ && found < most; ++i) {
      if (left[i] == 0) continue;
      kept[found++] = static_cast<uint32_t>(i);
      for (int64_t j = i + 1; j < count_; j += lanes<A>) {
        suppress(i, j, static_cast<int>(smaller(lanes<A>, count_ - j)), left);
      }
    }
    return found;
  }

 private:
  MPSF_INLINE void suppress(int64_t i, int64_t j, int n, A* left) const {
    const Vec<A> wide = common(across_, i, j, n), high = common(down_, i, j, n);
    const auto meets = (wide > 0) & (high > 0);
    if (!any(meets)) return;
    const Vec<A> along = factor(across_, i, j, n), down = factor(down_, i, j, n);
    const Vec<A> both = (wide * along) * (high * down);
    const Vec<A> own = (across_.length[i] * along) * (down_.length[i] * down);
    const Vec<A> other = (load_some(across_.length + j, n) * along) * (load_some(down_.length + j, n) * down);
    const auto over = meets & (both / (own + other - both) > threshold_);
    if (!any(over)) return;
    for (int lane = 0; lane < n; ++lane) {
      if (over[lane] != 0 && (classes_ == nullptr || classes_[i] == classes_[j + lane])) left[j + lane] = 0;
    }
  }

  const Side<A> across_, down_;
  const int64_t* const classes_;
  const int64_t count_;
  const A threshold_;
};

template <typename A>
void suppress_images(const Call& call) {
  const auto p = params_as<NmsParams<double>>(call.params);
  const Tensor &sides = call.in[0], &there = call.in[1];
  const int64_t images = there.shape[0], count = there.shape[1];
  const int64_t* classes = call.in_count > 3 ? data<int64_t>(call.in[3]) : nullptr;
  parallel_for(images, [&](int64_t n) {
    const int64_t* named = classes == nullptr ? nullptr : classes + n * count;
    const Suppression<A> image(data<A>(sides) + n * count, there.size, named, count, static_cast<A>(p.threshold));
    const Scratch<A> left(count);
    memcpy(left.get(), data<A>(there) + n * count, static_cast<size_t>(count) * sizeof(A));
    const uint32_t* order = data<uint32_t>(call.in[2]) + n * count;
    uint32_t* kept = data<uint32_t>(call.out[0]) + n * p.most;
    const int64_t found = image.run(left.get(), kept, p.most);
    for (int64_t i = 0; i < p.most; ++i) kept[i] = i < found ? order[kept[i]] : ~uint32_t{0};
    data<uint32_t>(call.out[1])[n] = static_cast<uint32_t>(found);
  });
}

}  // namespace

void nms(const Call& call) {
  call.in[0].type == Type::f64 ? suppress_images<double>(call) : suppress_images<float>(call);
}

}  // namespace mpsf::MPSF_ISA
