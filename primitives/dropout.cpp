// Dropout.
#include "simd.h"

namespace mpsf::MPSF_ISA {

void dropout(const Call&) {}
void dropout_mask(const Call&) {}
void dropout_by_mask(const Call&) {}

}  // namespace mpsf::MPSF_ISA
