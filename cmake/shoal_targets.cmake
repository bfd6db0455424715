# One static target per folder, one executable per test file; warnings, sanitizers and float rules are set here alone.

# Recompiles only what changed, also across build directories and clones: paths in objects count from the root, so that
# two clones agree.
find_program(SHOAL_CCACHE ccache)
if(SHOAL_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
                                  ${SHOAL_CCACHE})
endif()

add_library(shoal_options INTERFACE)
target_include_directories(shoal_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(shoal_options INTERFACE -ffile-prefix-map=${CMAKE_SOURCE_DIR}/=)
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

# What every test's process sees. Debian's own interpreter: its numpy and grpcio are what tests use.
set(SHOAL_TEST_ENVIRONMENT "")
if(SHOAL_SANITIZE MATCHES thread)
  list(APPEND SHOAL_TEST_ENVIRONMENT
       "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/suppressions/tsan.txt:second_deadlock_stack=1")
endif()
# Sanitized code is slower by about this much, and so is a test's patience.
set(SHOAL_TIMEOUT_FACTOR 1)
if(SHOAL_SANITIZE)
  set(SHOAL_TIMEOUT_FACTOR 5)
endif()
find_program(SHOAL_PYTHON NAMES python3 PATHS /usr/bin NO_DEFAULT_PATH)
# Every test has a /dev/shm of its own, so that those that run side by side do not find each other's files in it.
set(SHOAL_OWN_DEV_SHM ${CMAKE_SOURCE_DIR}/tests/own_dev_shm.sh)

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
  math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * ${SHOAL_TIMEOUT_FACTOR}")
  add_test(NAME ${folder}/${name} COMMAND ${SHOAL_OWN_DEV_SHM} $<TARGET_FILE:${target}>)
  set_tests_properties(${folder}/${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
                                                    ENVIRONMENT "${SHOAL_TEST_ENVIRONMENT}")
endfunction()

# shoal_python_test(e2e/oracle SCRIPT oracle_test.py [ARGS ...] [LABELS e2e] [TIMEOUT seconds]): runs the script against
# the program just built, whose path it finds in $SHOAL; exit code 77 means skipped.
function(shoal_python_test name)
  cmake_parse_arguments(ARG "" "SCRIPT;TIMEOUT" "ARGS;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS e2e)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * ${SHOAL_TIMEOUT_FACTOR}")
  add_test(NAME ${name} COMMAND ${SHOAL_OWN_DEV_SHM} ${SHOAL_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_SCRIPT} ${ARG_ARGS})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} SKIP_RETURN_CODE 77
                                          ENVIRONMENT "SHOAL=$<TARGET_FILE:shoal>;${SHOAL_TEST_ENVIRONMENT}")
endfunction()
