# One static target per folder, one executable per test file; warnings, sanitizers and float rules are set here alone.

include(CheckCXXCompilerFlag)

add_library(shoal_options INTERFACE)
target_include_directories(shoal_options INTERFACE ${CMAKE_SOURCE_DIR})
# Products and sums are fused only where the code says fma: section "Same bits everywhere" of docs/architecture.md.
target_compile_options(shoal_options INTERFACE -ffp-contract=off -fno-math-errno)

add_library(shoal_warnings INTERFACE)
target_compile_options(shoal_warnings INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)
if(SHOAL_WERROR)
  target_compile_options(shoal_warnings INTERFACE -Werror)
endif()

if(SHOAL_SANITIZE)
  target_compile_options(shoal_options INTERFACE -fsanitize=${SHOAL_SANITIZE} -fno-omit-frame-pointer
                                                 -fno-sanitize-recover=all)
  target_link_options(shoal_options INTERFACE -fsanitize=${SHOAL_SANITIZE})
  if(SHOAL_SANITIZE MATCHES thread)
    target_compile_definitions(shoal_options INTERFACE SHOAL_TSAN=1)
  endif()
endif()
if(SHOAL_FUZZ)
  # Every library is instrumented for coverage; only the fuzz targets link the fuzzer's main.
  target_compile_options(shoal_options INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(shoal_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

# shoal_library(NAME SOURCES a.cc b.cc DEPS shoal_base ...)
function(shoal_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC shoal_options ${ARG_DEPS} PRIVATE shoal_warnings)
endfunction()

# shoal_test(status_test DEPS shoal_base [LABELS unit] [ARGS ...] [TIMEOUT seconds]): builds NAME.cc of the current
# folder into an executable and registers it with CTest under the folder's name, e.g. runtime/base/status_test.
function(shoal_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "DEPS;LABELS;SOURCES" ${ARGN})
  file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR}/tests ${CMAKE_CURRENT_SOURCE_DIR})
  string(REPLACE "/" "_" prefix ${folder})
  set(target test_${prefix}_${name})
  add_executable(${target} ${name}.cc ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gtest_main shoal_options shoal_warnings)
  target_compile_definitions(${target} PRIVATE SHOAL_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data"
                                               SHOAL_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_test(NAME ${folder}/${name} COMMAND ${target})
  set_tests_properties(${folder}/${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
                                                    SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\] 1 test, listed below")
endfunction()
