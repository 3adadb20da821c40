// What each position along one axis reads or is read by, worked out once for all lines; and orders of a line's pixels
// that make neighbours of those that do the same, so that few channels fill whole vectors too.
#pragma once
#include "channels.h"
#include "geometry.h"
#include "parallel.h"
#include "simd.h"

namespace mpsf::MPSF_ISA {
namespace {

// Lists of entries, one after the other: list number i is [begin(i), end(i)). An entry has an offset `at` in elements.
template <typename Entry>
class Lists {
 public:
  Lists(int count, int64_t most) : count_(count), starts_(count + 1), entries_(most) { starts_[0] = 0; }
  void add(Entry entry) { entries_[end_++] = entry; }
  void close() { starts_[++closed_] = end_; }
  int64_t count() const { return count_; }
  const Entry* begin(int64_t i) const { return entries_.get() + starts_[i]; }
  const Entry* end(int64_t i) const { return begin(i + 1); }
  int size(int64_t i) const { return static_cast<int>(end(i) - begin(i)); }
  int64_t total() const { return end_; }

  // Whether list i + 1 has the entries of list i, each `step` elements further.
  bool goes_on(int64_t i, int64_t step) const {
    if (i + 1 == count_ || size(i) != size(i + 1)) return false;
    bool same = true;
    for (const Entry *entry = begin(i), *next = end(i); entry < end(i); ++entry, ++next) {
      same &= *next == entry->moved(step);
    }
    return same;
  }

 private:
  int64_t count_;
  Scratch<int64_t> starts_;
  Scratch<Entry> entries_;
  int64_t closed_ = 0, end_ = 0;
};

// As many entries as the windows of an axis can have with different inputs.
int64_t pairs(const Axis& a) { return int64_t{a.n_out} * lesser(a.size, a.n_in) + 1; }

// Neighbours that do the same with pixels side by side are one vector: for each position how many such begin there.
class Runs {
 public:
  template <typename Entry>
  Runs(const Lists<Entry>& lists, int64_t channels) : counts_(lists.count()) {
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

// Whether a line's pixels are worth another order: each fills less than a vector, and neighbouring windows are apart.
template <typename T>
bool reordered(const Axis& cols, int64_t channels) {
  return cols.stride > 1 && channels < lanes<Acc<T>>;
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

}  // namespace
}  // namespace mpsf::MPSF_ISA
