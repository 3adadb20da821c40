// How pooling goes over images: what each position along one axis reads or is read by is worked out once for all lines,
// and neighbours that do the same with pixels side by side are one vector. A line's pixels are put in an order that
// makes neighbours of them where there would be none, so that few channels fill whole vectors too.
#pragma once
#include "kernels/vector/channels.h"
#include "kernels/vector/simd.h"
#include "runtime/parallel.h"
#include "shared/geometry.h"

namespace mpsf::MPSF_ISA {
namespace {

// Where a window's tap or a pixel's reader lies along one axis, and what else there is to say of it.
template <typename P>
struct Entry {
  int64_t at;  // offset in elements
  P weight;
};

// Lists of entries: list number i holds [begin(i), end(i)), each at(i) elements further. Windows that lie inside alike
// have the list of the one before them, moved; so large windows cost memory at the borders only.
template <typename P>
class Lists {
 public:
  explicit Lists(int count) : count_(count), lists_(count) {}
  ~Lists() { scratch_free(entries_); }
  Lists(const Lists&) = delete;
  Lists& operator=(const Lists&) = delete;

  void add(int64_t at, P weight) {
    if (end_ == room_) grow();
    entries_[end_++] = {at, weight};
  }
  void close() {
    lists_[closed_++] = {last_, static_cast<int>(end_ - last_), 0};
    total_ += end_ - last_;
    last_ = end_;
  }
  // One more list, which is that of `before` lists ago with `step` added.
  void again(int64_t before, int64_t step) {
    const List& list = lists_[closed_ - before];
    lists_[closed_++] = {list.start, list.size, list.at + step};
    total_ += list.size;
  }

  int64_t count() const { return count_; }
  const Entry<P>* begin(int64_t i) const { return entries_ + lists_[i].start; }
  const Entry<P>* end(int64_t i) const { return begin(i) + lists_[i].size; }
  int64_t at(int64_t i) const { return lists_[i].at; }
  int size(int64_t i) const { return lists_[i].size; }
  int64_t total() const { return total_; }

  // Whether list i + 1 has the entries of list i, each `step` elements further.
  bool goes_on(int64_t i, int64_t step) const {
    if (i + 1 == count_ || size(i) != size(i + 1)) return false;
    step += at(i) - at(i + 1);
    if (begin(i) == begin(i + 1)) return step == 0;
    bool same = true;
    for (const Entry<P>*entry = begin(i), *next = begin(i + 1); entry < end(i); ++entry, ++next) {
      same &= next->at == entry->at + step && next->weight == entry->weight;
    }
    return same;
  }

 private:
  struct List {
    int64_t start;
    int size;
    int64_t at;
  };

  void grow() {
    const int64_t room = 2 * room_ + 64;
    auto* more = static_cast<Entry<P>*>(scratch_alloc(room * static_cast<int64_t>(sizeof(Entry<P>))));
    if (end_ > 0) memcpy(static_cast<void*>(more), entries_, static_cast<size_t>(end_) * sizeof(Entry<P>));
    scratch_free(entries_);
    entries_ = more;
    room_ = room;
  }

  int64_t count_;
  Scratch<List> lists_;
  Entry<P>* entries_ = nullptr;
  int64_t room_ = 0, end_ = 0, last_ = 0, closed_ = 0, total_ = 0;
};

// Whether output o reads with all its taps, inside the image; then the next such output reads alike.
inline bool inside(const Axis& a, int o) {
  return a.edge != 3 && selected(a, o) && first(a, o) >= 0 && first(a, o) + (a.size - 1) * a.dilation < a.n_in;
}

// Whether no window is missing that could read input i, and none of them is near an edge that matters.
inline bool is_interior(const Axis& a, int i) {
  const int low = ceil_div(i + a.pad - (a.size - 1) * a.dilation, a.stride), high = floor_div(i + a.pad, a.stride);
  if (a.edge == 3 || low < a.begin || high >= a.end) return false;
  return a.edge != 1 || (low <= high && inside(a, low) && inside(a, high) && i > 0 && i < a.n_in - 1);
}

// Neighbours that do the same with pixels side by side are one vector: for each position how many such begin there.
class Runs {
 public:
  template <typename P>
  Runs(const Lists<P>& lists, int64_t channels) : counts_(lists.count()) {
    for (int64_t i = lists.count() - 1; i >= 0; --i) counts_[i] = lists.goes_on(i, channels) ? counts_[i + 1] + 1 : 1;
  }
  int64_t operator[](int64_t i) const { return counts_[i]; }

 private:
  Scratch<int64_t> counts_;
};

// An order of a line's pixels in which those `step` apart are neighbours: first the multiples of the step, then what
// follows each of them, and so on.
class Order {
 public:
  Order(int64_t size, int64_t step) : pixels_(size), places_(size) {
    int64_t place = 0;
    for (int64_t phase = 0; phase < smaller(step, size); ++phase) {
      for (int64_t pixel = phase; pixel < size; pixel += step) {
        places_[pixel] = place;
        pixels_[place++] = static_cast<int>(pixel);
      }
    }
  }
  int64_t place(int64_t pixel) const { return places_[pixel]; }
  int pixel(int64_t place) const { return pixels_[place]; }

 private:
  Scratch<int> pixels_;
  Scratch<int64_t> places_;
};

// Pixel i of `to` is that at from + offsets[i]; both are lines of so many pixels. Copies more than a pixel at a time
// where there is more, which the next one overwrites.
template <int Bytes, typename T>
void reorder(const T* from, const int64_t* offsets, int64_t pixels, int64_t channels, T* to) {
  constexpr int64_t kCopied = Bytes / static_cast<int64_t>(sizeof(T));
  const int64_t last = pixels * channels - kCopied;
  for (int64_t i = 0; i < pixels; ++i) {
    if (offsets[i] <= last && i * channels <= last) {
      memcpy(static_cast<void*>(to + i * channels), from + offsets[i], Bytes);
    } else {
      for (int64_t c = 0; c < channels; ++c) to[i * channels + c] = from[offsets[i] + c];
    }
  }
}

template <typename T>
void reorder(const T* from, const int64_t* offsets, int64_t pixels, int64_t channels, T* to) {
  const int64_t bytes = channels * static_cast<int64_t>(sizeof(T));
  if (bytes <= 16) return reorder<16>(from, offsets, pixels, channels, to);
  if (bytes <= 32) return reorder<32>(from, offsets, pixels, channels, to);
  reorder<64>(from, offsets, pixels, channels, to);
}

// Whether a line's pixels are worth another order: each fills less than a vector, neighbouring windows are apart, and
// `kept` lines in that order stay in a cache.
template <typename T>
bool reordered(const Axis& cols, int64_t channels, int64_t kept) {
  constexpr int64_t kCached = 1 << 18;
  return cols.stride > 1 && cols.n_out > 1 && cols.edge != 3 && channels < lanes<Acc<T>> &&
         kept * cols.n_in * channels * static_cast<int64_t>(sizeof(T)) <= kCached;
}

// Calls f(offset, n) for the vectors of a line; the last ones reach back over what came before them and make it again.
template <typename A, typename F>
MPSF_INLINE void for_vectors(int64_t length, const F& f) {
  constexpr int L = lanes<A>;
  if (length < L) return f.template operator()<1>(0, static_cast<int>(length));
  int64_t at = 0;
  for (; at + kTile * L <= length; at += kTile * L) f.template operator()<kTile>(at, L);
  if (length - at > 2 * L && length >= kTile * L) return f.template operator()<kTile>(length - kTile * L, L);
  for (; at + 2 * L <= length; at += 2 * L) f.template operator()<2>(at, L);
  for (; at < length; at += L) f.template operator()<1>(smaller(at, length - L), L);
}

template <int N>
struct Constant {
  constexpr operator int() const { return N; }
};
template <typename Count>
constexpr bool is_constant = false;
template <int N>
constexpr bool is_constant<Constant<N>> = true;

// Calls f with the two counts as constants where windows are small, so that their loops unroll, if that is asked for.
template <bool Unrolled, typename F>
MPSF_INLINE void for_counts(int rows, int cols, const F& f) {
  if constexpr (Unrolled) {
    const auto known = [&]<int Rows, int Cols>() { f(Constant<Rows>(), Constant<Cols>()); };
    if (rows == 1 && cols == 1) return known.template operator()<1, 1>();
    if (rows == 1 && cols == 2) return known.template operator()<1, 2>();
    if (rows == 2 && cols == 1) return known.template operator()<2, 1>();
    if (rows == 2 && cols == 2) return known.template operator()<2, 2>();
    if (rows == 3 && cols == 3) return known.template operator()<3, 3>();
  }
  f(rows, cols);
}

// One line that a window reads.
template <typename T, typename P>
struct Line {
  const T* data;
  P weight;
};

// Goes over an image's windows. read(axis, o, add) calls add(i, weight) for each input i that output o reads along an
// axis. f(lines, row_count, cols, col_count, y, x, shift, at, length) makes the `length` elements from `at` on, of
// windows that begin with (y, x) and read the lines at shift + cols[j].at; row_count and col_count are constants where
// small, but for types with accumulators of 8 bytes, which would double what there is to compile.
template <typename T, typename P, bool Unrolled = sizeof(Acc<T>) == 4, typename Read, typename F>
void over_windows(const Call& call, const Axis& rows, const Axis& cols, const Read& read, const F& f) {
  const int64_t channels = call.out[0].shape[3], lines = int64_t{call.out[0].shape[0]} * rows.n_out;
  const int64_t pitch = cols.n_in * channels;
  const int64_t spanned = smaller(rows.n_in, int64_t{rows.size - 1} * rows.dilation + 1);
  const bool apart = reordered<T>(cols, channels, spanned);
  const Order order(cols.n_in, apart ? cols.stride : 1);
  Lists<P> row_lists(rows.n_out), col_lists(cols.n_out);
  for (int y = 0; y < rows.n_out; ++y) {
    if (y > 0 && inside(rows, y - 1) && inside(rows, y)) {
      row_lists.again(1, rows.stride);
      continue;
    }
    read(rows, y, [&](int row, P weight) { row_lists.add(row, weight); });
    row_lists.close();
  }
  for (int x = 0; x < cols.n_out; ++x) {
    if (x > 0 && inside(cols, x - 1) && inside(cols, x)) {
      col_lists.again(1, (apart ? 1 : cols.stride) * channels);
      continue;
    }
    read(cols, x, [&](int col, P weight) { col_lists.add(order.place(col) * channels, weight); });
    col_lists.close();
  }
  const Runs runs(col_lists, channels);
  const Scratch<int64_t> offsets(cols.n_in);
  for (int i = 0; i < cols.n_in; ++i) offsets[i] = order.pixel(i) * channels;

  // As many lines as a window spans; each stays until another needs its place.
  const int64_t kept = apart ? spanned : 0;
  const int64_t taps = row_lists.total() * col_lists.total() / rows.n_out;
  parallel_groups(lines, cols.n_out * channels, channels * (1 + taps), [&](int64_t begin, int64_t end) {
    const Scratch<Line<T, P>> found(smaller(rows.size, rows.n_in));
    const Scratch<T> buffer(kept * pitch);
    const Scratch<int64_t> held(kept);
    for (int64_t i = 0; i < kept; ++i) held[i] = -1;
    for (int64_t line = begin; line < end; ++line) {
      const int64_t image = line / rows.n_out, y = line % rows.n_out;
      const int row_count = row_lists.size(y);
      for (int i = 0; i < row_count; ++i) {
        const Entry<P>& entry = row_lists.begin(y)[i];
        const int64_t at = row_lists.at(y) + entry.at, row = image * rows.n_in + at;
        const T* source = data<T>(call.in[0]) + row * pitch;
        if (apart) {
          T* copy = &buffer[at % kept * pitch];
          if (held[at % kept] != row) reorder(source, offsets.get(), cols.n_in, channels, copy);
          held[at % kept] = row;
          source = copy;
        }
        found[i] = {source, entry.weight};
      }
      for (int64_t x = 0; x < cols.n_out; x += runs[x]) {
        for_counts<Unrolled>(row_count, col_lists.size(x), [&](auto row_count, auto col_count) {
          f(found.get(), row_count, col_lists.begin(x), col_count, static_cast<int>(y), static_cast<int>(x),
            col_lists.at(x), (line * cols.n_out + x) * channels, runs[x] * channels);
        });
      }
    }
  });
}

// Goes over the pixels of a gradient. read(axis, i, add) calls add(o, weight) for each output o that reads input i
// along an axis. f(from, rows, row_count, cols, col_count, own, made, length, streamed) makes `length` elements at
// `made` of pixels that are read at from + rows[i].at + cols[j].at; `own` are theirs in the image `source`, if there is
// one.
template <typename T, typename P, bool Unrolled = sizeof(Acc<T>) == 4, typename Read, typename F>
void over_pixels(const Call& call, const Axis& rows, const Axis& cols, const T* source, const Read& read, const F& f) {
  const Tensor& out = call.out[0];
  const int64_t channels = out.shape[3], lines = int64_t{out.shape[0]} * rows.n_in;
  const int64_t pitch = cols.n_in * channels, row_pitch = cols.n_out * channels;
  const bool apart = reordered<T>(cols, channels, 1);
  const Order order(cols.n_in, apart ? cols.stride : 1);
  Lists<P> row_lists(rows.n_in), col_lists(cols.n_in);
  for (int h = 0; h < rows.n_in; ++h) {
    if (h >= rows.stride && is_interior(rows, h - rows.stride) && is_interior(rows, h)) {
      row_lists.again(rows.stride, row_pitch);
      continue;
    }
    read(rows, h, [&](int y, P weight) { row_lists.add(y * row_pitch, weight); });
    row_lists.close();
  }
  for (int place = 0; place < cols.n_in; ++place) {
    const int w = order.pixel(place);
    if (w >= cols.stride && is_interior(cols, w - cols.stride) && is_interior(cols, w)) {
      col_lists.again(apart ? 1 : cols.stride, channels);
      continue;
    }
    read(cols, w, [&](int x, P weight) { col_lists.add(x * channels, weight); });
    col_lists.close();
  }
  const Runs runs(col_lists, channels);
  const Scratch<int64_t> there(cols.n_in), back(cols.n_in);
  for (int i = 0; i < cols.n_in; ++i) {
    there[i] = order.pixel(i) * channels;
    back[i] = order.place(i) * channels;
  }
  const bool streamed = out.streamed && channels % lanes<Acc<T>> == 0;

  parallel_groups(lines, pitch, pitch, [&](int64_t begin, int64_t end) {
    const Scratch<T> buffer(apart ? pitch : 0), image_buffer(apart && source ? pitch : 0);
    for (int64_t line = begin; line < end; ++line) {
      const int64_t image = line / rows.n_in, h = line % rows.n_in, from = image * rows.n_out * row_pitch;
      T* dx = data<T>(out) + line * pitch;
      T* made = apart ? buffer.get() : dx;
      const T* own = source ? source + line * pitch : made;
      if (apart && source) {
        reorder(own, there.get(), cols.n_in, channels, image_buffer.get());
        own = image_buffer.get();
      }
      for (int64_t place = 0; place < cols.n_in; place += runs[place]) {
        for_counts<Unrolled>(row_lists.size(h), col_lists.size(place), [&](auto row_count, auto col_count) {
          f(from + row_lists.at(h) + col_lists.at(place), row_lists.begin(h), row_count, col_lists.begin(place),
            col_count, own + place * channels, made + place * channels, runs[place] * channels, streamed);
        });
      }
      if (apart) reorder(buffer.get(), back.get(), cols.n_in, channels, dx);
      stream_end();
    }
  });
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
