// Which of the compiled instruction sets runs: the widest one of this machine, or the one asked for.
// What is marked visible here, in check.h and in parallel.h is all that the binding calls, and all that is seen of the
// library. A binding may be built long after it, by users for their MLX: both know a digest of these headers, and are
// used together only where it is the same.
#pragma once
#include <string>
#include <vector>

#include "runtime/call.h"
#include "runtime/operations.h"

namespace mpsf {

#define MPSF_ENUMERATE(op) op,
enum class Op : int { MPSF_KERNELS(MPSF_ENUMERATE) };
#undef MPSF_ENUMERATE

[[gnu::visibility("default")]] const char* op_name(Op op);

// The digest that the library was built with.
[[gnu::visibility("default")]] const char* interface();

// Runs the kernel on the calling thread and the pool.
[[gnu::visibility("default")]] void run_kernel(Op op, const Call& call);

// Calls task(context, i) for every i in [0, chunks) on the calling thread and the pool: what a binding does by itself.
[[gnu::visibility("default")]] void run_on_pool(void* context, void (*task)(void*, int64_t), int64_t chunks);

// Names of the instruction sets that were compiled and that this machine has, widest first.
[[gnu::visibility("default")]] std::vector<std::string> isas();
[[gnu::visibility("default")]] std::string active_isa();
[[gnu::visibility("default")]] void set_isa(const std::string& name);

// The number of the set in use, by which laid out weights name theirs.
[[gnu::visibility("default")]] int isa_number();
// Words of 32 bits that weights (o, rows, cols, c / groups) of this dtype take when they are laid out for the set of
// that number; 0 where they are read as they are, where that would need much more memory, and if there is no such set.
[[gnu::visibility("default")]] int64_t conv_layout_words(int isa, Type weights, const int* shape, int groups);

}  // namespace mpsf
