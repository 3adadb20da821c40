# How everything here is compiled.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(warnings -Wall -Wextra)

# For tests: the process must then start with the sanitizer's library (make asan).
option(MPSF_SANITIZE "Check addresses and undefined behaviour" OFF)
set(optimize -O3)
set(checks "")  # of our own sources
if(MPSF_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG")
  set(optimize -O1 -fira-region=one)  # builds in half the time, and that in nine tenths
  # The address sanitizer sees what the first three would, and they make a third of the build. The last one needs the
  # type information of MLX's classes, which libmlx does not export for all of them.
  set(checks -fsanitize=address,undefined -fno-sanitize=null,object-size,pointer-overflow,vptr -fno-sanitize-recover=all
             -g1 -DMPSF_SANITIZE)
  add_link_options(-fsanitize=address,undefined)
endif()

# Of what the binding knows of the library; dispatch.h says what for.
set(interface call check dispatch operations parallel)
set(digests "")
foreach(name IN LISTS interface)
  set(header "${CMAKE_CURRENT_LIST_DIR}/runtime/${name}.h")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${header}")
  file(SHA256 "${header}" one)
  string(APPEND digests ${one})
endforeach()
string(SHA256 digest "${digests}")
