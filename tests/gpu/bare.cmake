# Those targets of the whole build that the GPU tests need, without its packages (gRPC, Protobuf,
# GoogleTest, JSON).
get_filename_component(root ${CMAKE_CURRENT_SOURCE_DIR}/../.. ABSOLUTE)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
find_package(Threads REQUIRED)
enable_testing()

file(STRINGS ${root}/CMakeLists.txt version REGEX "^project\\(shoal VERSION")
string(REGEX REPLACE ".*VERSION ([0-9.]+).*" "\\1" version "${version}")
foreach(header cuda_module cuda_ops)
  file(SHA256 ${root}/runtime/device/${header}.h hash)
  string(APPEND boundary ${hash})
endforeach()
string(SHA256 boundary ${boundary})
string(SUBSTRING ${boundary} 0 12 boundary)
set(SHOAL_BUILD_ID ${version}-${boundary})
set(SHOAL_CUDA ON CACHE STRING "Build libshoal_cuda.so, without which the programs test nothing")

add_library(shoal_options INTERFACE)
target_include_directories(shoal_options INTERFACE ${root})
target_compile_options(shoal_options
                       INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off -fno-math-errno>)
add_library(shoal_warnings INTERFACE)
target_compile_options(shoal_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra>)

function(shoal_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC shoal_options ${ARG_DEPS} PRIVATE shoal_warnings)
endfunction()

# json.cc is left out, because nothing below needs it.
set(base ${root}/runtime/base)
shoal_library(shoal_base SOURCES ${base}/dtype.cc ${base}/gpu_name.cc ${base}/log.cc
                ${base}/patient_writer.cc ${base}/process_limit.cc ${base}/program_path.cc
                ${base}/quantity.cc ${base}/reduce_tree.cc ${base}/running_clock.cc
                ${base}/status.cc ${base}/terminal.cc ${base}/thread_pool.cc
              DEPS Threads::Threads)
foreach(folder runtime/memory runtime/device runtime/comm kernels/cuda bench/gpu)
  add_subdirectory(${root}/${folder} ${CMAKE_BINARY_DIR}/${folder})
endforeach()
