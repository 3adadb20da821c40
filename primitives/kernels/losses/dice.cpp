// The sums of the Dice loss over the pixels of each class of an image, the gradient of what is made of them, and that
// of the loss itself in one. Blocks of pixels become probabilities and targets in the caches.
#include "kernels/activation/apply.h"
#include "kernels/losses/softmax_rows.h"
#include "kernels/vector/channels.h"
#include "losses/params.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

enum Made : int { kAsTheyAre, kBySigmoid, kBySoftmax };

// Elements of a block, of one row at least: four of its arrays stay in the second cache, two in the first.
constexpr int64_t kBlockElements = 1 << 12;

template <typename T>
class Images {
 public:
  using A = Acc<T>;
  static constexpr int64_t L = lanes<A>;

  explicit Images(const Call& call)
      : params(params_as<DiceParams>(call.params)),
        classes(call.in[0].shape[2]),
        image(int64_t{call.in[0].shape[1]} * classes),
        rows(rows_of<A>(image, classes)),
        each(1 + kBlockElements / rows.width),
        y_(data<T>(call.in[0])),
        target_(data<T>(call.in[1])),
        labels_(data<uint32_t>(call.in[1])) {}

  const DiceParams params;
  const int64_t classes;
  const int64_t image;  // elements of one
  const Rows rows;      // of one
  const int64_t each;   // rows of a block

  // Room for one number an element of a block.
  int64_t block_size() const { return each * rows.width + L; }
  int64_t pixels() const { return each * rows.width / classes; }
  // Room besides for what probabilities are made of.
  int64_t room_size() const {
    return classes < L ? 3 * (kBlockLines * classes + L) + 2 * kBlockLines : smaller(kKept, classes) + L;
  }

  // Calls f(from, count, width) for the blocks of the rows [begin, end) of an image, each of so many rows; the one
  // behind the whole ones is what rests. `from` is an element of the image.
  template <typename F>
  void for_blocks(int64_t begin, int64_t end, const F& f) const {
    const int64_t whole = smaller(end, rows.count);
    for (int64_t row = begin; row < whole; row += each) f(row * rows.width, smaller(each, whole - row), rows.width);
    if (end > rows.count && rows.rest > 0) f(rows.count * rows.width, int64_t{1}, rows.rest);
  }

  const T* y(int64_t at) const { return y_ + at; }

  // The probabilities of so many elements from number `at` on, which may be in `made`.
  const A* probabilities(int64_t at, int64_t size, A* made, A* room) const {
    if (params.activation == kAsTheyAre) return widened(y_ + at, size, made);
    if (params.activation == kBySigmoid) {
      along<A>(
          size, [&](int64_t i, int n)
                    __attribute__((always_inline)) { store_some(made + i, sigmoid(load_some(y_ + at + i, n)), n); });
      return made;
    }
    if (classes < L) {
      const int64_t most = kBlockLines * classes;
      for (int64_t i = 0; i < size; i += most) {
        few<false>(y_ + at + i, smaller(most, size - i) / classes, classes, room, made + i, false);
      }
      return made;
    }
    for (int64_t i = 0; i < size; i += classes) row<false>(y_ + at + i, classes, room, made + i, false);
    return made;
  }

  // Their targets; those of a label that is no class are zeros.
  const A* targets(int64_t at, int64_t size, A* made) const {
    if (!params.labelled) return widened(target_ + at, size, made);
    memset(made, 0, static_cast<size_t>(size) * sizeof(A));
    const uint32_t* labels = labels_ + at / classes;
    for (int64_t pixel = 0; pixel * classes < size; ++pixel) {
      if (labels[pixel] < classes) made[pixel * classes + labels[pixel]] = 1;
    }
    return made;
  }

 private:
  static const A* widened(const T* from, int64_t size, A* made) {
    if constexpr (sizeof(T) == sizeof(A)) return from;
    along<A>(
        size, [&](int64_t i, int n)
                  __attribute__((always_inline)) { store_some(made + i, load_some(from + i, n), n); });
    return made;
  }

  const T *y_, *target_;
  const uint32_t* labels_;  // in the place of a target
};

// Terms of a place: p * t, p and t, or of the last two their squares.
constexpr int kTerms = 3;

// A statistics group for each image.
template <typename T>
StatGroups groups_of(const Images<T>& images, const Call& call) {
  StatGroups groups{call.in[0].shape[0], images.image, images.rows};
  groups.rows.most = (kChunks + groups.count - 1) / groups.count;
  return groups;
}

// The sums of groups that begin with image number `first`. Probabilities stay in `kept`, if it is not null, in the
// places of y.
template <bool Squared, typename T>
void add_up(const Images<T>& images, const StatGroups& groups, int64_t first, Acc<T>* kept,
            Acc<T>* const (&out)[kTerms]) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const int64_t classes = images.classes, stride = images.rows.width + kTile * L, size = images.block_size();
  reduce_stat_groups(
      groups, kTerms * classes, kTerms * stride + 2 * size + images.room_size(),
      [&](int64_t group, int64_t chunk, double* part, double* sums) {
        A *const p_made = reinterpret_cast<A*>(sums + kTerms * stride), *const t_made = p_made + size;
        memset(sums, 0, static_cast<size_t>(kTerms * stride) * sizeof(double));
        const auto add = [&](int64_t from, int64_t count, int64_t width) {
          const int64_t at = (first + group) * images.image + from;
          const A* const p = images.probabilities(at, count * width, kept ? kept + at : p_made, t_made + size);
          const A* const t = images.targets(at, count * width, t_made);
          for_columns<A>(width, [&]<int N>(int64_t column, int n) {
            Vec<A> acc[kTerms][N] = {};
            for (int64_t i = column; i < count * width; i += width) {
              for (int v = 0; v < N; ++v) {
                const Vec<A> one = load_some(p + i + v * L, n), other = load_some(t + i + v * L, n);
                acc[0][v] += one * other;
                acc[1][v] += Squared ? one * one : one;
                acc[2][v] += Squared ? other * other : other;
              }
            }
            A lane[kTerms][N * L];
            memcpy(lane, acc, sizeof(lane));
            for (int k = 0; k < kTerms; ++k) {
              double* sum = &sums[k * stride + column];
              for (int i = 0; i < N * L; ++i) sum[i] += static_cast<double>(lane[k][i]);
            }
          });
        };
        images.for_blocks(groups.rows.begin(chunk), groups.rows.begin(chunk + 1), add);
        for (int k = 0; k < kTerms; ++k) {
          fold(&sums[k * stride], groups.rows.width_of(chunk), part + k * classes, classes);
        }
      },
      [&](int64_t group, double* parts) { add_chunks(groups.rows, group, parts, out); });
}

// p * (dp - sum of p * dp) of a line of N vectors, or of more and kept in `room` where N is 0; slope(at, n, p) is dp.
template <int N, typename T, typename F>
MPSF_INLINE void pulled(const Acc<T>* p, int64_t length, Acc<T>* room, T* dx, bool streamed, const F& slope) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  if constexpr (N == 0) {
    LaneSum<A> dot;
    along<A>(
        length, [&](int64_t i, int n) __attribute__((always_inline)) {
          const Vec<A> own = load_some(p + i, n), dp = slope(i, n, own);
          store_some(room + i, dp, n);
          dot.add(own * dp);
        });
    const A less = static_cast<A>(dot.total());
    along<A>(
        length, [&](int64_t i, int n) __attribute__((always_inline)) {
          store_result(dx + i, load_some(p + i, n) * (load_some(room + i, n) - less), n, streamed && n == L);
        });
  } else {
    const int rest = static_cast<int>(length - (N - 1) * L);
    Vec<A> own[N], dp[N], dot{};
    for (int i = 0; i < N; ++i) {
      const int n = i < N - 1 ? L : rest;
      own[i] = load_some(p + i * L, n);
      dp[i] = slope(i * L, n, own[i]);
      dot += own[i] * dp[i];
    }
    const A less = sum_of<A>(dot);
    for (int i = 0; i < N; ++i) {
      const int n = i < N - 1 ? L : rest;
      store_result(dx + i * L, own[i] * (dp[i] - less), n, streamed && n == L);
    }
  }
}

// dx of a block: by_both * t + by_p, or of squares by_both * t + 2 * by_p * p, through what made p of y. `both` and
// `own` have an entry for each of a row. The p of softmax are in `kept`, which dx may be, unless it is null.
template <bool Squared, typename T>
void passed_on(const Images<T>& images, int64_t at, int64_t count, int64_t width, const Acc<T>* both, const Acc<T>* own,
               const Acc<T>* kept, Acc<T>* made, T* dx, bool streamed) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const int64_t size = images.block_size(), elements = count * width, classes = images.classes;
  A *const t_made = made, *const p_made = t_made + size, *const d = p_made + size, *const room = d + size;
  const A* const t = images.targets(at, elements, t_made);
  const auto slope = [&](int64_t i, int64_t column, int n, Vec<A> p) __attribute__((always_inline)) {
    const Vec<A> by_p = load_some(own + column, n);
    return load_some(t + i, n) * load_some(both + column, n) + (Squared ? by_p * (p + p) : by_p);
  };
  const auto over_rows = [&](const auto& f) __attribute__((always_inline)) {
    for (int64_t row = 0; row < count; ++row) {
      along<A>(
          width, [&](int64_t i, int n) __attribute__((always_inline)) { f(row * width + i, i, n); });
    }
  };
  if (images.params.activation != kBySoftmax) {
    const bool by_sigmoid = images.params.activation == kBySigmoid;
    return over_rows([&](int64_t i, int64_t column, int n) __attribute__((always_inline)) {
      const Vec<A> y = load_some(images.y(at + i), n);
      const Vec<A> p = by_sigmoid && Squared ? sigmoid(y) : y, dp = slope(i, column, n, p);
      store_result(dx + i, by_sigmoid ? dp * sigmoid_slope(y) : dp, n, streamed && n == L);
    });
  }
  const A* const p = kept ? kept + at : images.probabilities(at, elements, p_made, room);
  if (classes >= L) {  // a row is a pixel's, or several
    return by_vectors<A>(
        classes, [&]<int N>() __attribute__((always_inline)) {
          for (int64_t pixel = 0; pixel < elements; pixel += classes) {
            const int64_t column = pixel % width;
            pulled<N>(
                p + pixel, classes, d, dx + pixel,
                streamed, [&](int64_t i, int n, Vec<A> own_p) __attribute__((always_inline)) {
                  return slope(pixel + i, column + i, n, own_p);
                });
          }
        });
  }
  A *const terms = t_made, *const each = room;
  over_rows([&](int64_t i, int64_t column, int n) __attribute__((always_inline)) {
    const Vec<A> own_p = load_some(p + i, n), dp = slope(i, column, n, own_p);
    store_some(d + i, dp, n);
    store_some(terms + i, own_p * dp, n);
  });
  sum_of_each(terms, elements / classes, classes, each);
  spread(each, elements / classes, classes, terms);
  along<A>(
      elements, [&](int64_t i, int n) __attribute__((always_inline)) {
        const Vec<A> dp = load_some(d + i, n) - load_some(terms + i, n);
        store_result(dx + i, load_some(p + i, n) * dp, n, false);
      });
}

// The gradient of groups that begin with image number `first`, from those by their sums of p * t and of p.
template <bool Squared, typename T>
void pass_on(const Images<T>& images, const StatGroups& groups, int64_t first, const Acc<T>* by_both,
             const Acc<T>* by_p, const Acc<T>* kept, const Tensor& out) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const Rows& rows = images.rows;
  const bool streamed = out.streamed && images.classes % L == 0 && !kept;
  const int64_t together = images.each * (1 + kChunkElements / images.block_size());
  const int64_t tasks = (rows.count + 1 + together - 1) / together;  // one more row rests
  parallel_for(groups.count * tasks, [&](int64_t task) {
    const int64_t group = task / tasks, begin = task % tasks * together;
    const Scratch<A> room(3 * images.block_size() + images.pixels() + images.room_size() + 2 * rows.width);
    A* const both_room = room.get();
    const A* const both = entries_of(by_both, groups, group, both_room);
    const A* const own = entries_of(by_p, groups, group, both_room + rows.width);
    images.for_blocks(begin, smaller(begin + together, rows.count + 1),
                      [&](int64_t from, int64_t count, int64_t width) {
                        const int64_t at = (first + group) * images.image + from;
                        passed_on<Squared>(images, at, count, width, both, own, kept, both_room + 2 * rows.width,
                                           data<T>(out) + at, streamed);
                      });
    stream_end();
  });
}

// Sums and gradient at once: of a few images at a time, while these are in the caches, where every thread has several.
// What softmax makes stays in the place of the gradient, unless that is narrower.
template <bool Squared, typename T>
void loss_gradient(const Images<T>& images, const Call& call) {
  using A = Acc<T>;
  const auto numbers = params_as<DiceLossParams<double>>(call.params);
  const A smooth = static_cast<A>(numbers.smooth), share = static_cast<A>(numbers.share);
  const A twice = static_cast<A>(-2 * numbers.share);
  A* kept = nullptr;
  if constexpr (sizeof(T) == sizeof(A)) {
    if (images.params.activation == kBySoftmax) kept = data<A>(call.out[0]);
  }
  for_stat_groups(groups_of(images, call), [&](const StatGroups& groups, int64_t first) {
    const int64_t size = groups.count * images.classes;
    const Scratch<A> both(size), of_p(size), of_t(size);
    add_up<Squared>(images, groups, first, kept, {both.get(), of_p.get(), of_t.get()});
    for (int64_t i = 0; i < size; ++i) {
      const A above = 2 * both[i] + smooth, below = of_p[i] + of_t[i] + smooth;
      both[i] = twice / below;
      of_p[i] = share * above / (below * below);
    }
    pass_on<Squared>(images, groups, first, both.get(), of_p.get(), kept, call.out[0]);
  });
}

// Calls f with what a call is of, and whether sums are of squares as a constant.
template <typename F>
void of_images(const Call& call, const F& f) {
  if (call.in[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) {
    const Images<decltype(zero)> images(call);
    using T = decltype(zero);
    images.params.squared ? f.template operator()<true, T>(images) : f.template operator()<false, T>(images);
  });
}

}  // namespace

void dice_sums(const Call& call) {
  of_images(call, [&]<bool Squared, typename T>(const Images<T>& images) {
    using A = Acc<T>;
    A* const out[kTerms] = {data<A>(call.out[0]), data<A>(call.out[1]), data<A>(call.out[2])};
    add_up<Squared>(images, groups_of(images, call), 0, nullptr, out);
  });
}

void dice_grad(const Call& call) {
  of_images(call, [&]<bool Squared, typename T>(const Images<T>& images) {
    using A = Acc<T>;
    const A *const by_both = data<A>(call.in[2]), *const by_p = data<A>(call.in[3]);
    pass_on<Squared>(images, groups_of(images, call), 0, by_both, by_p, nullptr, call.out[0]);
  });
}

void dice_loss_grad(const Call& call) {
  of_images(call, [&]<bool Squared, typename T>(const Images<T>& images) { loss_gradient<Squared>(images, call); });
}

}  // namespace mpsf::MPSF_ISA
