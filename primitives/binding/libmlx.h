// What a library exports, looked up by name: MLX's headers of its CUDA backend need CUDA's, and builds for the CPU have
// neither.
#pragma once
#include <type_traits>

#include "mlx/scheduler.h"

#if defined(__linux__)
#include <dlfcn.h>
#endif

namespace mpsf {

// Sets pointers to functions of a library that is loaded already; null where there is none.
class Library {
 public:
#if defined(__linux__)
  explicit Library(const char* name) : library_(dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) {}
  ~Library() {
    if (library_) dlclose(library_);  // others hold it
  }
  template <typename Function>
  void find(Function& function, const char* name) const {
    if (library_) function = reinterpret_cast<std::decay_t<Function>>(dlsym(library_, name));
  }
#else
  explicit Library(const char*) {}
  template <typename Function>
  void find(Function&, const char*) const {}
#endif
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

 private:
  void* library_ = nullptr;
};

inline const char* path_of_libmlx() {
#if defined(__linux__)
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&mlx::core::scheduler::scheduler), &info)) return info.dli_fname;
#endif
  return "";
}

}  // namespace mpsf
