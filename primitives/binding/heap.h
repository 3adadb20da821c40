// What becomes of freed memory.
#pragma once
#include <stddef.h>

namespace mpsf {

// Has malloc cut large blocks, too, out of its one heap, where the space of dead ones joins that of their neighbours
// and serves new ones of any size, without fresh pages; so many free bytes at its end stay with the process. False
// where malloc is not glibc's, or the user told glibc's how to do it.
bool keep_freed(size_t bytes);

}  // namespace mpsf
