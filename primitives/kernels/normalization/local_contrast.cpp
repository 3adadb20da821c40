// Local contrast normalization: y = pm + ps * (x - p0 * m) * t^-beta with t = delta + alpha * var, where m and var are
// the mean and the variance over a window with zeros outside the image. Sums are in double: the variance is their
// difference, and what the mean takes from 53 bits leaves enough for float32. Images of doubles lose what it takes.
#include "kernels/normalization/sliding_sums.h"
#include "kernels/vector/channels.h"
#include "kernels/vector/power.h"
#include "kernels/vector/simd.h"
#include "normalization/params.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

using D = double;

template <typename A>
struct Contrast {
  int64_t size;
  Power<A> power;  // with -beta
  double share, alpha, beta, delta, p0, pm, ps;

  explicit Contrast(const LocalContrastParams<double>& p)
      : size(p.size),
        power(-p.beta),
        share(1 / (static_cast<double>(size) * static_cast<double>(size))),
        alpha(p.alpha),
        beta(p.beta),
        delta(p.delta),
        p0(p.p0),
        pm(p.pm),
        ps(p.ps) {}
};

// Calls f(i, n) for the vectors of so many doubles.
template <typename F>
MPSF_INLINE void for_doubles(int64_t length, const F& f) {
  constexpr int L = lanes<D>;
  int64_t i = 0;
  for (; i + L <= length; i += L) f(i, L);
  if (i < length) f(i, static_cast<int>(length - i));
}

// The means and t^-beta of a part's windows, row by row from the top. Windows reach down to `reach.after` rows ahead.
template <typename T>
class Windows {
  using A = Acc<T>;

 public:
  // Of rows [top, bottom) of the part.
  Windows(const Contrast<A>& contrast, const Tensor& x, const Part& part, int64_t top, int64_t bottom)
      : contrast_(contrast),
        x_(x),
        part_(part),
        images_(images_of(x)),
        reach_(reach_of(contrast.size, images_.height)),
        width_(images_.width * part.channels),
        next_(larger(0, top - reach_.before)),
        end_(smaller(images_.height, bottom + reach_.after)),
        falling_{{width_, reach_, next_, end_}, {width_, reach_, next_, end_}},
        along_{{images_.width, part.channels, reach_of(contrast.size, images_.width)},
               {images_.width, part.channels, reach_of(contrast.size, images_.width)}},
        room_(width_),
        mean_(width_),
        base_(width_),
        power_(width_) {}

  const D* mean() const { return mean_.get(); }
  const D* base() const { return base_.get(); }
  const D* power() const { return power_.get(); }

  // Goes on to a row.
  void reach(int64_t row) {
    for (; next_ <= row + reach_.after; ++next_) {
      const bool wanted = next_ == row + reach_.after;
      const D* x = next_ < end_ ? taken<D, T>(x_, part_, next_, room_.get()) : nullptr;
      falling_[0].push(next_, wanted ? along_[0].row() : nullptr,
                       [&](int64_t i, int n) { return load_some(x + i, n); });
      falling_[1].push(next_, wanted ? along_[1].row() : nullptr, [&](int64_t i, int n) {
        const Vec<D> v = load_some(x + i, n);
        return v * v;
      });
    }
    const D *sums = along_[0].sums(), *squares = along_[1].sums();
    for_doubles(width_, [&](int64_t i, int n) {
      const Vec<D> mean = load_some(sums + i, n) * contrast_.share;
      Vec<D> var = load_some(squares + i, n) * contrast_.share - mean * mean;
      var = var < 0 ? Vec<D>{} : var;  // by rounding only
      store_some(&mean_[i], mean, n);
      store_some(&base_[i], var * contrast_.alpha + contrast_.delta, n);
    });
    for_powers(
        contrast_.power, width_, [&](int64_t i, int n) { return load_as<A>(&base_[i], n); },
        [&](int64_t i, int n, Vec<A> power) { store_as(&power_[i], power, n); });
  }

 private:
  const Contrast<A>& contrast_;
  const Tensor& x_;
  Part part_;
  Images images_;
  Reach reach_;
  int64_t width_, next_, end_;
  FallingSums<D> falling_[2];
  RowSums<D> along_[2];
  Scratch<D> room_, mean_, base_, power_;
};

template <typename T>
void forward(const Call& call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  const Images images = images_of(x);
  const Contrast<Acc<T>> c(params_as<LocalContrastParams<double>>(call.params));
  parallel_parts<D>(images, reach_of(c.size, images.height).size(), [&](const Part& part) {
    const int64_t width = images.width * part.channels;
    Windows<T> windows(c, x, part, part.top, part.bottom);
    Scratch<D> room(width), made(width);
    for (int64_t row = part.top; row < part.bottom; ++row) {
      windows.reach(row);
      const D* in = taken<D, T>(x, part, row, room.get());
      for_doubles(width, [&](int64_t i, int n) {
        const Vec<D> centred = load_some(in + i, n) - load_some(windows.mean() + i, n) * c.p0;
        store_some(&made[i], centred * load_some(windows.power() + i, n) * c.ps + c.pm, n);
      });
      put<T>(y, part, row, made.get());
    }
  });
}

// With a = dy * t^-beta, b = dy * (x - p0 * m) * t^(-beta - 1) and k = 2 alpha beta / N,
// dx = ps * (a - k * x * sum(b) + sum(k * b * m - p0 / N * a)), where sums are over the windows that read x.
template <typename T>
void gradient(const Call& call) {
  const Tensor &dy = call.in[0], &x = call.in[1], &dx = call.out[0];
  const Images images = images_of(x);
  const Contrast<Acc<T>> c(params_as<LocalContrastParams<double>>(call.params));
  const double slope = 2 * c.alpha * c.beta * c.share, level = c.p0 * c.share;
  const Reach up = reach_of(c.size, images.height).mirrored(), back = reach_of(c.size, images.width).mirrored();
  parallel_parts<D>(images, up.size(), [&](const Part& part) {
    const int64_t width = images.width * part.channels, kept = up.after + 1;
    const int64_t top = larger(0, part.top - up.before), bottom = smaller(images.height, part.bottom + up.after);
    Windows<T> windows(c, x, part, top, bottom);
    FallingSums<D> slopes(width, up, top, bottom), levels(width, up, top, bottom);
    RowSums<D> slope_row(images.width, part.channels, back), level_row(images.width, part.channels, back);
    Scratch<D> x_room(width), dy_room(width), pulled(kept * width), slope_sums(width), level_sums(width);
    for (int64_t window = top; window < part.bottom + up.after; ++window) {
      const int64_t row = window - up.after;
      const bool wanted = row >= part.top;
      const D *slope_run = nullptr, *level_run = nullptr;
      if (window < bottom) {
        windows.reach(window);
        const D *in = taken<D, T>(x, part, window, x_room.get()), *g = taken<D, T>(dy, part, window, dy_room.get());
        D* own = &pulled[window % kept * width];
        for_doubles(width, [&](int64_t i, int n) {
          const Vec<D> mean = load_some(windows.mean() + i, n);
          const Vec<D> a = load_some(g + i, n) * load_some(windows.power() + i, n);
          const Vec<D> b = a * (load_some(in + i, n) - mean * c.p0) / load_some(windows.base() + i, n) * slope;
          store_some(own + i, a, n);
          store_some(slope_row.row() + i, b, n);
          store_some(level_row.row() + i, b * mean - a * level, n);
        });
        slope_run = slope_row.sums();
        level_run = level_row.sums();
      }
      slopes.push(window, wanted ? slope_sums.get() : nullptr,
                  [&](int64_t i, int n) { return load_some(slope_run + i, n); });
      levels.push(window, wanted ? level_sums.get() : nullptr,
                  [&](int64_t i, int n) { return load_some(level_run + i, n); });
      if (!wanted) continue;
      const D *in = taken<D, T>(x, part, row, x_room.get()), *own = &pulled[row % kept * width];
      D* made = dy_room.get();
      for_doubles(width, [&](int64_t i, int n) {
        const Vec<D> across =
            load_some(level_sums.get() + i, n) - load_some(in + i, n) * load_some(slope_sums.get() + i, n);
        store_some(made + i, (load_some(own + i, n) + across) * c.ps, n);
      });
      put<T>(dx, part, row, made);
    }
  });
}

}  // namespace

void local_contrast_norm(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { forward<decltype(zero)>(call); });
}

void local_contrast_norm_grad(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { gradient<decltype(zero)>(call); });
}

}  // namespace mpsf::MPSF_ISA
