// Dropout: x * mask / keep, with a mask of bytes that is given, or made as it is needed.
#include "kernels/elementwise/broadcast_rows.h"
#include "kernels/elementwise/vector_philox.h"

namespace mpsf::MPSF_ISA {
namespace {

// Bytes that are 1 where a random word is below a threshold. Each set of them has a key of its own.
struct Random {
  using Entry = Byte;
  Operand operand;
  const uint32_t* keys;
  int64_t set;  // entries of a set
  uint32_t threshold;

  static constexpr int64_t room() { return kTogether + 2 * kWords; }

  const Byte* entries(int64_t first, int64_t count, Byte* to) const {
    const int64_t which = first / set, begin = first % set, skipped = begin % 4;
    const Key key{keys[2 * which], keys[2 * which + 1]};
    typedef uint8_t Bytes __attribute__((vector_size(kVectorBytes / 4)));
    for (int64_t made = 0; made < skipped + count; made += kWords) {
      Bits32 words[2 * kGroups];
      philox(static_cast<uint64_t>((begin - skipped + made) / 4), key, words);
      for (int i = 0; i < 2 * kGroups; ++i) {
        const Bits32 kept = bit_cast<Bits32>(words[i] < threshold) & 1;
        const Bytes bytes = __builtin_convertvector(kept, Bytes);
        memcpy(to + made + i * static_cast<int64_t>(sizeof(bytes)), &bytes, sizeof(bytes));
      }
    }
    return to + skipped;
  }
};

template <typename T, typename Params, typename Mask>
void dropped(const Call& call, const Params& p, const Mask& mask) {
  using A = Acc<T>;
  const A by = static_cast<A>(p.keep);
  elementwise<T, A>(
      call.out[0], Result(p), [=](Vec<A> x, Vec<A> m) { return x * m / by; }, Stored<T>(call.in[0], p.x), mask);
}

}  // namespace

void dropout(const Call& call) {
  const DropoutParams<double> p = params_as<DropoutParams<double>>(call.params);
  const int64_t sets = call.in[1].size / 2, all = p.mask.images * entries(p.mask);
  const Random random{p.mask, data<uint32_t>(call.in[1]), all / sets, p.bound};
  by_type(call.in[0].type, [&](auto zero) { dropped<decltype(zero)>(call, p, random); });
}

void dropout_by_mask(const Call& call) {
  const DropoutByMaskParams<double> p = params_as<DropoutByMaskParams<double>>(call.params);
  const Stored<Byte> mask(call.in[1], p.mask);
  by_type(call.in[0].type, [&](auto zero) { dropped<decltype(zero)>(call, p, mask); });
}

void dropout_mask(const Call& call) {
  const int64_t size = call.out[0].size, sets = call.in[0].size / 2;
  if (size == 0) return;
  const int64_t set = size / sets, parts = (set + kTogether - 1) / kTogether;
  const Random random{{}, data<uint32_t>(call.in[0]), set, params_as<DropoutMaskParams>(call.params).bound};
  const int64_t several = 1 + kChunkElements / smaller(set, kTogether);
  parallel_for((sets * parts + several - 1) / several, [&](int64_t chunk) {
    Scratch<Byte> room(Random::room());
    for (int64_t i = chunk * several; i < smaller(sets * parts, (chunk + 1) * several); ++i) {
      const int64_t from = i % parts * kTogether, count = smaller(kTogether, set - from);
      const int64_t first = i / parts * set + from;
      memcpy(data<Byte>(call.out[0]) + first, random.entries(first, count, room.get()), static_cast<size_t>(count));
    }
  });
}

}  // namespace mpsf::MPSF_ISA
