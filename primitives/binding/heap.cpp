#include "binding/heap.h"

#include <climits>  // which says whether this is glibc
#include <cstdlib>
#include <cstring>

#if defined(__GLIBC__)
#include <dlfcn.h>
#include <malloc.h>
#endif

namespace mpsf {

bool keep_freed([[maybe_unused]] size_t bytes) {
#if defined(__GLIBC__)
  const char* const names[] = {"MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"};
  for (const char* name : names) {
    if (getenv(name) != nullptr) return false;
  }
  const char* tunables = getenv("GLIBC_TUNABLES");
  if (tunables != nullptr && strstr(tunables, "glibc.malloc.") != nullptr) return false;
  void* libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  if (libc == nullptr) return false;
  const bool its = dlsym(libc, "malloc") == dlsym(RTLD_DEFAULT, "malloc");  // not of a library that was preloaded
  dlclose(libc);
  const int most = bytes < INT_MAX ? static_cast<int>(bytes) : INT_MAX;
  return its && mallopt(M_TRIM_THRESHOLD, most) == 1 && mallopt(M_MMAP_MAX, 0) == 1;
#else
  return false;
#endif
}

}  // namespace mpsf
