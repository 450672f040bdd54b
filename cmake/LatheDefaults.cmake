# Language level, warnings and sanitizers of every target of the project.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# Release keeps symbols for profilers; no fast-math anywhere: NaN checks must work.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g -D_GLIBCXX_ASSERTIONS")

add_library(lathe_options INTERFACE)
target_compile_options(lathe_options INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Wcast-qual -Wunused -Woverloaded-virtual
  -fno-math-errno -fno-trapping-math)
if(LATHE_WERROR)
  target_compile_options(lathe_options INTERFACE -Werror)
endif()
if(LATHE_SANITIZE)
  # Line numbers are all that reports need; full debug information doubles the time of the build.
  add_compile_options(-fsanitize=${LATHE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${LATHE_SANITIZE})
  # Under sanitizers g++ 12 takes std::function inside <regex> for uninitialised.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-maybe-uninitialized)
  endif()
endif()
target_include_directories(lathe_options INTERFACE "${CMAKE_SOURCE_DIR}/src")

find_program(LATHE_CCACHE ccache)
if(LATHE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${LATHE_CCACHE}")
endif()
