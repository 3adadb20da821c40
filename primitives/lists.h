// What every position along one axis reads or is read by, worked out once for all lines.
#pragma once
#include "geometry.h"
#include "parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

// Lists of entries, one after the other: list number i is [begin(i), begin(i + 1)).
template <typename Entry>
class Lists {
 public:
  Lists(int count, int64_t most) : starts_(count + 1), entries_(most) { starts_[0] = 0; }
  void add(Entry entry) { entries_[end_++] = entry; }
  void close(int i) { starts_[i + 1] = end_; }
  const Entry* begin(int64_t i) const { return entries_.get() + starts_[i]; }

 private:
  Scratch<int64_t> starts_;
  Scratch<Entry> entries_;
  int64_t end_ = 0;
};

// As many entries as the windows of an axis can have with different inputs.
int64_t pairs(const Axis& a) { return int64_t{a.n_out} * lesser(a.size, a.n_in) + 1; }

}  // namespace
}  // namespace mpsf::MPSF_ISA
