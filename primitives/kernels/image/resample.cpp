// Images whose rows and columns are picked or mixed from those of others, as tables say: for every line and column of
// the result what it reads. Upsampling, resizing and padding are such, and so are their gradients.
#include "kernels/vector/mix.h"
#include "kernels/vector/tap_lists.h"

namespace mpsf::MPSF_ISA {
namespace {

constexpr uint32_t kNothing = UINT32_MAX;

// Moving -------------------------------------------------------------------------------------------------

template <int Bytes>
MPSF_INLINE void move_ends(char* to, const char* from, int64_t bytes) {
  memcpy(to, from, Bytes);
  memcpy(to + bytes - Bytes, from + bytes - Bytes, Bytes);
}

// A memcpy that is inlined, and that stores past the caches if told to.
MPSF_INLINE void move(char* to, const char* from, int64_t bytes, bool streamed) {
  typedef char Vector __attribute__((vector_size(kVectorBytes)));
  if (bytes < kVectorBytes) {
    if (bytes >= 32) return move_ends<32>(to, from, bytes);
    if (bytes >= 16) return move_ends<16>(to, from, bytes);
    if (bytes >= 8) return move_ends<8>(to, from, bytes);
    if (bytes >= 4) return move_ends<4>(to, from, bytes);
    for (int64_t i = 0; i < bytes; ++i) to[i] = from[i];
    return;
  }
  int64_t at = 0;
  if (streamed) {
    const int64_t ahead = (kVectorBytes - reinterpret_cast<uintptr_t>(to) % kVectorBytes) % kVectorBytes;
    if (ahead > 0) {
      memcpy(to, from, kVectorBytes);
      at = ahead;
    }
    for (; at + kVectorBytes <= bytes; at += kVectorBytes) {
      Vector v;
      memcpy(&v, from + at, sizeof(v));
      stream_bits(to + at, v);
    }
  } else {
    for (; at + kVectorBytes <= bytes; at += kVectorBytes) memcpy(to + at, from + at, kVectorBytes);
  }
  if (at < bytes) memcpy(to + bytes - kVectorBytes, from + bytes - kVectorBytes, kVectorBytes);
}

// The same to two neighbours of whole vectors.
MPSF_INLINE void twice(char* to, const char* from, int64_t bytes, bool streamed) {
  typedef char Vector __attribute__((vector_size(kVectorBytes)));
  for (int64_t at = 0; at < bytes; at += kVectorBytes) {
    Vector v;
    memcpy(&v, from + at, sizeof(v));
    if (streamed) {
      stream_bits(to + at, v);
      stream_bits(to + bytes + at, v);
    } else {
      memcpy(to + at, &v, sizeof(v));
      memcpy(to + bytes + at, &v, sizeof(v));
    }
  }
}

template <typename U>
void repeat(void* to, const void* value, int64_t count) {
  U one, *p = static_cast<U*>(to);
  memcpy(&one, value, sizeof(one));
  for (int64_t i = 0; i < count; ++i) p[i] = one;
}

void fill(char* to, const void* value, int64_t bytes, int64_t element) {
  if (element == 1) return repeat<uint8_t>(to, value, bytes);
  if (element == 2) return repeat<uint16_t>(to, value, bytes / 2);
  if (element == 4) return repeat<uint32_t>(to, value, bytes / 4);
  repeat<uint64_t>(to, value, bytes / 8);
}

int64_t bytes_of(Type type) {
  switch (type) {
    case Type::u8:
      return 1;
    case Type::f16:
    case Type::bf16:
    case Type::u16:
      return 2;
    case Type::f32:
    case Type::u32:
      return 4;
    case Type::f64:
    case Type::i64:
    case Type::u64:
      break;
  }
  return 8;
}

// What a table picks at a position; nothing if there is no such row or column, for a table may hold anything.
uint32_t picked(const Tensor& table, int64_t i, int n_in) {
  const uint32_t index = data<uint32_t>(table)[i];
  return index < static_cast<uint32_t>(n_in) ? index : kNothing;
}

// Lines are shared out in groups that are so many times smaller than elsewhere: a result may be much smaller than what
// is read for it.
constexpr int64_t kFiner = 2;

// Mixing -------------------------------------------------------------------------------------------------

// The lists of a table: count + 1 numbers that say where each begins and ends among the entries behind them, which are
// an index and a double.
template <typename A>
void read_lists(const Tensor& table, int count, int n_in, int64_t step, Lists<A>& lists) {
  const uint32_t *begins = data<uint32_t>(table), *entries = begins + count + 1;
  const int64_t there = (table.size - count - 1) / 3;
  int64_t e = 0;
  for (int i = 0; i < count; ++i) {
    for (e = begins[i] > e ? begins[i] : e; e < begins[i + 1] && e < there; ++e) {  // each once, whatever they say
      const uint32_t index = entries[3 * e];
      double weight;
      memcpy(&weight, entries + 3 * e + 1, sizeof(weight));
      if (index < static_cast<uint32_t>(n_in)) lists.add(index * step, static_cast<A>(weight));
    }
    lists.close();
  }
}

// out[i] is the sum over two lists at once. Of few entries, places and weights stay in registers.
template <typename T, typename A, typename Rows, typename Cols>
MPSF_INLINE void mix_both(const T* from, const Entry<A>* rows, Rows row_count, const Entry<A>* cols, Cols col_count,
                          int64_t length, T* out, bool streamed) {
  constexpr int L = lanes<A>;
  if constexpr (is_constant<Rows> && is_constant<Cols>) {
    constexpr int R = Rows(), C = Cols();
    const T* places[R * C];
    Vec<A> weights[R * C];
    for (int i = 0; i < R * C; ++i) {
      places[i] = from + rows[i / C].at + cols[i % C].at;
      weights[i] = splat(rows[i / C].weight * cols[i % C].weight);
    }
    return for_vectors<A>(
        length, [&]<int N>(int64_t at, int n) __attribute__((always_inline)) {
          Vec<A> sum[N];
          for (int v = 0; v < N; ++v) sum[v] = load_some(places[0] + at + v * L, n) * weights[0];
          for (int i = 1; i < R * C; ++i) {
            for (int v = 0; v < N; ++v) sum[v] += load_some(places[i] + at + v * L, n) * weights[i];
          }
          for (int v = 0; v < N; ++v) store_result(out + at + v * L, sum[v], n, streamed);
        });
  }
  for_vectors<A>(length, [=]<int N>(int64_t at, int n) {
    Vec<A> sum[N];
    for (int v = 0; v < N; ++v) {
      sum[v] = load_some(from + rows[0].at + cols[0].at + at + v * L, n) * (rows[0].weight * cols[0].weight);
    }
    for (int i = 1; i < row_count * col_count; ++i) {
      const Entry<A>&row = rows[i / col_count], &col = cols[i % col_count];
      const T* p = from + row.at + col.at + at;
      for (int v = 0; v < N; ++v) sum[v] += load_some(p + v * L, n) * (row.weight * col.weight);
    }
    for (int v = 0; v < N; ++v) store_result(out + at + v * L, sum[v], n, streamed);
  });
}

// Asks for memory.
MPSF_INLINE void ask(const void* from, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(static_cast<const char*>(from) + at);
}

// Asks for what the rows of a list have a little behind an offset: hardware follows one row, but not some by turns.
template <typename T, typename A>
MPSF_INLINE void ask_ahead(const T* from, const Entry<A>* rows, int count, int64_t offset, int64_t length) {
  for (int i = 0; i < count; ++i) ask(from + rows[i].at + offset, length * static_cast<int64_t>(sizeof(T)));
}

template <typename A>
int longest(const Lists<A>& lists) {
  int most = 0;
  for (int64_t i = 0; i < lists.count(); ++i) most = lists.size(i) > most ? lists.size(i) : most;
  return most;
}

// The stretches of a line that lists read, of which small gaps are a part.
class Stretches {
 public:
  struct Stretch {
    int64_t at, length;
  };

  template <typename A>
  Stretches(const Lists<A>& lists, int n_in, int64_t step) : found_(n_in) {
    constexpr int64_t kGap = 64;  // elements that cost less than another stretch
    const Scratch<bool> read(n_in);
    for (int i = 0; i < n_in; ++i) read[i] = false;
    for (int64_t i = 0; i < lists.count(); ++i) {
      for (const Entry<A>* entry = lists.begin(i); entry < lists.end(i); ++entry) read[entry->at / step] = true;
    }
    for (int i = 0; i < n_in; ++i) {
      if (!read[i]) continue;
      const int64_t at = i * step, behind = count_ > 0 ? found_[count_ - 1].at + found_[count_ - 1].length : 0;
      if (count_ > 0 && at - behind <= kGap) {
        found_[count_ - 1].length = at + step - found_[count_ - 1].at;
      } else {
        found_[count_++] = {at, step};
      }
    }
  }
  const Stretch* begin() const { return found_.get(); }
  const Stretch* end() const { return found_.get() + count_; }

 private:
  Scratch<Stretch> found_;
  int64_t count_ = 0;
};

// Each line of the result in two steps: the rows that it reads become one as far as there are columns that read it, and
// of that the columns are mixed. In one step where there is little to read and less to make, as for sums over blocks of
// two by two.
template <typename T>
void mixed(const Call& call) {
  using A = Acc<T>;
  const Tensor &x = call.in[0], &y = call.out[0];
  const int n_rows = x.shape[1], n_cols = x.shape[2], rows = y.shape[1], cols = y.shape[2];
  const int64_t channels = y.shape[3], lines = int64_t{y.shape[0]} * rows;
  const int64_t pitch = n_cols * channels, out_pitch = cols * channels;
  Lists<A> row_lists(rows), col_lists(cols);
  read_lists(call.in[1], rows, n_rows, pitch, row_lists);
  read_lists(call.in[2], cols, n_cols, channels, col_lists);
  const Runs runs(col_lists, channels);
  const Stretches stretches(col_lists, n_cols, channels);
  const bool streamed = y.streamed && channels % lanes<A> == 0;
  const int64_t row_taps = 1 + row_lists.total() / rows, col_taps = 1 + col_lists.total() / cols;

  const bool at_once = out_pitch < pitch && longest(row_lists) <= 2 && longest(col_lists) <= 2;
  const int64_t ahead = 1 + 2048 / (channels * col_taps * static_cast<int64_t>(sizeof(T)));  // columns to ask for

  parallel_groups(lines, kFiner * out_pitch, row_taps * pitch + col_taps * out_pitch, [&](int64_t begin, int64_t end) {
    const Scratch<A> buffer(pitch);
    for (int64_t line = begin; line < end; ++line) {
      const int64_t image = line / rows, row = line % rows;
      const T* source = data<T>(x) + image * n_rows * pitch;
      T* made = data<T>(y) + line * out_pitch;
      const Entry<A>* taps = row_lists.begin(row);
      const int count = row_lists.size(row);
      const A* from = buffer.get();
      bool whole = false;
      if constexpr (sizeof(T) == sizeof(A)) {
        whole = count == 1 && taps[0].weight == 1;
        if (whole) from = source + taps[0].at;
      }
      if (count > 0 && !whole && !at_once) {
        for_count(count, [&](auto count) {
          for (const auto& stretch : stretches) {
            mix(source + stretch.at, taps, count, stretch.length, buffer.get() + stretch.at, false);
          }
        });
      }
      for (int64_t col = 0; col < cols; col += runs[col]) {
        T* out = made + col * channels;
        const int64_t length = runs[col] * channels;
        if (count == 0 || col_lists.size(col) == 0) {
          for (int64_t i = 0; i < length; ++i) out[i] = T{};
          continue;
        }
        if (at_once) {
          const Entry<A>* reads = col_lists.begin(col);
          if (col + ahead < cols && col_lists.size(col + ahead) > 0) {
            ask_ahead(source, taps, count, col_lists.begin(col + ahead)[0].at, channels * col_lists.size(col + ahead));
          }
          for_counts<sizeof(A) == 4>(
              count, col_lists.size(col), [&](auto row_count, auto col_count) __attribute__((always_inline)) {
                mix_both(source, taps, row_count, reads, col_count, length, out, streamed);
              });
          continue;
        }
        for_count(col_lists.size(col),
                  [&](auto count) { mix(from, col_lists.begin(col), count, length, out, streamed); });
      }
    }
    stream_end();
  });
}

}  // namespace

void gather_pixels(const Call& call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  if (y.size == 0) return;
  const int n_rows = x.shape[1], n_cols = x.shape[2], rows = y.shape[1], cols = y.shape[2];
  const int64_t element = bytes_of(y.type), pixel = y.shape[3] * element;
  const int64_t pitch = n_cols * pixel, out_pitch = cols * pixel, lines = int64_t{y.shape[0]} * rows;
  const void* value = call.in[3].data;
  const Scratch<uint32_t> columns(cols);
  for (int col = 0; col < cols; ++col) columns[col] = picked(call.in[2], col, n_cols);
  const Scratch<int> runs(cols);  // how many columns from here on lie side by side in the source, or are nothing
  for (int col = cols - 1; col >= 0; --col) {
    const bool goes_on = col + 1 < cols && columns[col + 1] == columns[col] + (columns[col] != kNothing);
    runs[col] = goes_on ? runs[col + 1] + 1 : 1;
  }
  const bool whole = pixel % kVectorBytes == 0;
  const auto again = [&](int64_t col) { return col + 1 < cols && columns[col + 1] == columns[col]; };
  const int64_t elements = out_pitch / element;
  const bool sparse = 3 * cols <= 2 * n_cols;
  const int64_t ahead = 1 + 2048 / pixel;
  parallel_groups(lines, kFiner * elements, elements, [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const uint32_t row = picked(call.in[1], line % rows, n_rows);
      char* to = data<char>(y) + line * out_pitch;
      if (row == kNothing) {
        fill(to, value, out_pitch, element);
        continue;
      }
      const char* from = data<const char>(x) + (line / rows * n_rows + row) * pitch;
      for (int64_t col = 0, done = 0; col < cols; col += done) {
        done = runs[col];
        if (columns[col] == kNothing) {
          fill(to + col * pixel, value, runs[col] * pixel, element);
        } else if (whole && again(col)) {
          twice(to + col * pixel, from + columns[col] * pixel, pixel, y.streamed);
          done = 2;
        } else {
          if (sparse && col + ahead < cols) ask(from + columns[col + ahead] * pixel, pixel);
          move(to + col * pixel, from + columns[col] * pixel, runs[col] * pixel, y.streamed);
        }
      }
    }
    stream_end();
  });
}

void resample(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { mixed<decltype(zero)>(call); });
}

}  // namespace mpsf::MPSF_ISA
