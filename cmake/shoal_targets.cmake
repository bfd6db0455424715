# One static target per folder, and one program for most tests of a folder; warnings, sanitizers and float rules
# are set here alone.

# The root of these sources, whichever project builds them (examples/lift is another one).
get_filename_component(SHOAL_ROOT ${CMAKE_CURRENT_LIST_DIR}/.. ABSOLUTE)

# Recompiles only what changed, also across build directories and clones: paths in objects count
# from the root, so that two clones agree.
find_program(SHOAL_CCACHE ccache)
if(SHOAL_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # What ccache needs for precompiled headers: no header of the build writes down a time or asks for
  # a macro late.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${SHOAL_ROOT}
      CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros ${SHOAL_CCACHE})
endif()

add_library(shoal_options INTERFACE)
target_include_directories(shoal_options INTERFACE ${SHOAL_ROOT})
target_compile_options(shoal_options INTERFACE -ffile-prefix-map=${SHOAL_ROOT}/=)
# Products and sums are fused only if the code says fma: section "Same bits everywhere" of
# docs/architecture.md.
target_compile_options(shoal_options INTERFACE -ffp-contract=off -fno-math-errno)

if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # The compiler frees memory only after its first gigabyte, which takes a tenth less time.
  target_compile_options(shoal_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:SHELL:--param ggc-min-heapsize=1000000>)
endif()

add_library(shoal_warnings INTERFACE)
target_compile_options(shoal_warnings
                       INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)
if(SHOAL_WERROR)
  target_compile_options(shoal_warnings INTERFACE -Werror)
endif()

# By which the front and its ranks know that they are of one build (runtime/base/program_path.h).
target_link_options(shoal_options INTERFACE -Wl,--build-id=sha1)

if(SHOAL_SANITIZE)
  target_compile_options(shoal_options INTERFACE -fsanitize=${SHOAL_SANITIZE}
                           -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(shoal_options INTERFACE -fsanitize=${SHOAL_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL Clang AND SHOAL_SANITIZE MATCHES undefined)
    # NCCL's functions are found by name and called through types of our own
    # (runtime/comm/device/nccl_api.h).
    target_compile_options(shoal_options INTERFACE -fno-sanitize=function)
  endif()
  target_compile_definitions(shoal_options INTERFACE SHOAL_SANITIZED=1)
  if(SHOAL_SANITIZE MATCHES thread)
    target_compile_definitions(shoal_options INTERFACE SHOAL_TSAN=1)
    # Under TSan protobuf's headers give map fields two more members, which Debian's libprotobuf
    # does not have: every map would be read at the wrong offset. Therefore no header sees TSan
    # except libstdc++'s, which asks the second macro.
    target_compile_options(shoal_options INTERFACE -U__SANITIZE_THREAD__ -D_GLIBCXX_TSAN=1)
  endif()
endif()
if(CMAKE_CROSSCOMPILING)
  target_compile_definitions(shoal_options INTERFACE SHOAL_EMULATED=1)
endif()
if(SHOAL_FUZZ)
  # What reads the bytes of strangers is instrumented for coverage (shoal_library), so that the
  # fuzzers see where an input leads. Only the fuzz targets link the fuzzer's main.
  set(SHOAL_FUZZED shoal_intake shoal_models shoal_serving shoal_grpc_connections shoal_grpc shoal_http
      shoal_facades)
  target_link_options(shoal_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

# How the tests' own sources compile, which are half of all that is compiled. They compile with -O0,
# which takes half of the time, because only the libraries have to be tested as they are shipped,
# and with the headers that nearly all of them include compiled once (SHOAL_PCH).
add_library(shoal_test_options INTERFACE)
target_link_libraries(shoal_test_options INTERFACE GTest::gtest shoal_options shoal_warnings)
# gRPC asks for -pthread. The precompiled header fits only if all tests are compiled with it.
target_compile_options(shoal_test_options INTERFACE -pthread)
target_compile_options(shoal_test_options INTERFACE -O0)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # At -O1 g++ 12 takes the two halves of a std::string for one (its bug 105329).
  target_compile_options(shoal_test_options
                         INTERFACE -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow)
endif()

if(SHOAL_TESTS AND SHOAL_PCH)
  # A target whose one source is empty: it carries the precompiled header that the tests reuse.
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/shoal_test_pch.cc CONTENT "")
  add_library(shoal_test_pch OBJECT ${CMAKE_BINARY_DIR}/shoal_test_pch.cc)
  target_link_libraries(shoal_test_pch PRIVATE shoal_test_options)
  target_precompile_headers(shoal_test_pch PRIVATE <gtest/gtest.h> <algorithm> <array> <atomic>
      <chrono> <filesystem> <fstream> <functional> <map> <memory> <optional>
      <span> <sstream> <string> <string_view> <thread> <tuple> <variant> <vector>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(shoal_test_options INTERFACE -fpch-preprocess)  # ccache needs it
  endif()
endif()

# What every test's process sees. Debian's own interpreter: its numpy and grpcio are what tests use.
set(SHOAL_TEST_ENVIRONMENT "")
if(SHOAL_SANITIZE)
  list(APPEND SHOAL_TEST_ENVIRONMENT "SHOAL_TEST_SANITIZED=1")  # tests/e2e/breadth.py
endif()
if(CMAKE_CROSSCOMPILING)
  list(APPEND SHOAL_TEST_ENVIRONMENT "SHOAL_TEST_EMULATOR=${CMAKE_CROSSCOMPILING_EMULATOR}")
endif()
# shoal_emulated(TEST): in a build for another processor, a test of SHOAL_EMULATED_TESTS
# (tests/tables.cmake) runs under its emulator.
function(shoal_emulated name)
  if(CMAKE_CROSSCOMPILING AND name IN_LIST SHOAL_EMULATED_TESTS)
    set_property(TEST ${name} APPEND PROPERTY LABELS arm64)
  endif()
endfunction()
# shoal_sanitizer_options(TEST): a sanitizer's report goes to a file of the test's name, whichever
# of its processes has it. scripts/test fails the test then, and shows the file
# (scripts/sanitizer_reports.py).
function(shoal_sanitizer_options name)
  string(REPLACE "/" "__" file ${name})
  set(log ":log_path=${CMAKE_BINARY_DIR}/reports/${file}")
  if(name IN_LIST SHOAL_TESTS_THAT_PROVOKE_REPORTS)
    set(log "")
  endif()
  if(SHOAL_SANITIZE MATCHES thread)
    set(known "suppressions=${SHOAL_ROOT}/tests/suppressions/tsan.txt:second_deadlock_stack=1")
    # A program that a signal ends at once waits for none of its threads, and has not joined one that
    # has just ended.
    string(APPEND known ":report_thread_leaks=0")
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT "TSAN_OPTIONS=${known}${log}")
  elseif(SHOAL_SANITIZE)
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT "ASAN_OPTIONS=detect_leaks=1${log}")
    if(name IN_LIST SHOAL_TESTS_THAT_REFUSE_TLS)
      set(known "suppressions=${SHOAL_ROOT}/tests/suppressions/lsan.txt:print_suppressions=0")
      set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT "LSAN_OPTIONS=${known}")
    endif()
  endif()
endfunction()

# shoal_schedule(TEST): gives a test what tests/tables.cmake says of when and beside what it runs.
function(shoal_schedule name)
  foreach(entry IN LISTS SHOAL_TEST_COSTS)
    if(entry MATCHES "^(.*)=(.*)$" AND CMAKE_MATCH_1 STREQUAL name)
      set_tests_properties(${name} PROPERTIES COST ${CMAKE_MATCH_2})
    endif()
  endforeach()
  foreach(entry IN LISTS SHOAL_TEST_PROCESSORS)
    if(entry MATCHES "^(.*)=(.*)$" AND CMAKE_MATCH_1 STREQUAL name)
      set_tests_properties(${name} PROPERTIES PROCESSORS ${CMAKE_MATCH_2})
    endif()
  endforeach()
  foreach(entry IN LISTS SHOAL_TESTS_BY_DAY)
    if(entry MATCHES "^(.*)=(.*)$" AND CMAKE_MATCH_1 STREQUAL name AND NOT SHOAL_SANITIZE)
      set_property(TEST ${name} APPEND PROPERTY LABELS day${CMAKE_MATCH_2})
    endif()
  endforeach()
  foreach(pattern IN LISTS SHOAL_CLOCK_TESTS)
    if(name MATCHES "^${pattern}$")
      set_property(TEST ${name} APPEND PROPERTY LABELS clock)
    endif()
  endforeach()
endfunction()

# Sanitized or emulated code is slower by about this much, and so is a test's patience.
set(SHOAL_TIMEOUT_FACTOR 1)
if(SHOAL_SANITIZE OR CMAKE_CROSSCOMPILING)
  set(SHOAL_TIMEOUT_FACTOR 5)
endif()
find_program(SHOAL_PYTHON NAMES python3 PATHS /usr/bin NO_DEFAULT_PATH)
# Every test has a /dev/shm of its own, so that those that run side by side do not find each other's
# files in it.
set(SHOAL_OWN_DEV_SHM ${SHOAL_ROOT}/tests/own_dev_shm.sh)

# shoal_share_out(TEST...): under a sanitizer each of these tests belongs to one of a few days, of
# which `scripts/test --all` runs one. Its release run does nearly all of them every day
# (SHOAL_TESTS_BY_DAY in tests/tables.cmake has the others). ThreadSanitizer sees little of them,
# because most of what they start are processes. The numbers are prime, so that the parts of a test
# do not all come on the same day.
set(SHOAL_DAYS 5)
if(SHOAL_SANITIZE MATCHES thread)
  set(SHOAL_DAYS 7)
endif()
function(shoal_share_out)
  if(NOT SHOAL_SANITIZE)
    return()
  endif()
  foreach(test ${ARGN})
    get_property(number GLOBAL PROPERTY SHOAL_SHARED_OUT)
    math(EXPR share "0${number}")
    math(EXPR next "(${share} + 1) % ${SHOAL_DAYS}")
    set_property(GLOBAL PROPERTY SHOAL_SHARED_OUT ${next})
    set_property(TEST ${test} APPEND PROPERTY LABELS day${share})
  endforeach()
endfunction()

# shoal_share_out_slow(TEST...): the same, but only under ThreadSanitizer, which makes these tests
# slow: ranks spin beside more ranks than there are processors.
function(shoal_share_out_slow)
  if(SHOAL_SANITIZE MATCHES thread)
    shoal_share_out(${ARGN})
  endif()
endfunction()

# With SHOAL_UNITY the sources of a target are compiled as one, because most of the time goes to
# headers and templates that they share. clang-tidy still reads each of them alone.
function(shoal_unity target)
  if(SHOAL_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  endif()
endfunction()

# shoal_compile_alone(a.cc b.cc): these sources of the current folder keep out of SHOAL_UNITY, for
# example because each of them defines the same names as the next.
function(shoal_compile_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# What answers clients, reads the command line and the model's files, and starts ranks waits for the
# network, the disk and the kernel, so that more optimization would only make the build longer by a
# fifth of what these libraries take. What computes and moves sums is not among them.
set(SHOAL_FRONT shoal_cli shoal_commands shoal_facades shoal_grpc shoal_grpc_connections shoal_host
    shoal_http shoal_intake shoal_metrics shoal_models shoal_net shoal_serving shoal_shmtest
    shoal_supervisor shoal_transport shoal_transport_facts shoal_transport_needs shoal_transport_rungs)

# With SHOAL_ONLY_TOOLS, half of the time would go to the headers that most libraries include.
function(shoal_tools_pch target)
  if(SHOAL_ONLY_TOOLS)
    target_precompile_headers(${target} REUSE_FROM shoal_all_pch)
    if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
      target_compile_options(${target} PRIVATE -fpch-preprocess)  # ccache needs it
    endif()
  endif()
endfunction()

# shoal_library(NAME SOURCES a.cc b.cc DEPS shoal_base ...)
function(shoal_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC shoal_options ${ARG_DEPS} PRIVATE shoal_warnings)
  if(name IN_LIST SHOAL_FRONT AND NOT SHOAL_ONLY_TOOLS)  # which optimizes nothing
    target_compile_options(${name} PRIVATE -O1)
  endif()
  if(name IN_LIST SHOAL_FUZZED)
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
  shoal_unity(${name})
  shoal_tools_pch(${name})
endfunction()

# What scripts/test builds: the program, and what its tests need. It leaves out the benches and what
# only the labels thorough and gpu need.
add_custom_target(usual)

# shoal_test_program(TARGET SOURCES ... OWN_SOURCES ... DEPS ...): what every test program has.
function(shoal_test_program target)
  cmake_parse_arguments(ARG "" "" "SOURCES;OWN_SOURCES;DEPS" ${ARGN})
  add_executable(${target} ${ARG_SOURCES} ${ARG_OWN_SOURCES})
  add_dependencies(usual ${target})
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} shoal_test_options)
  if(SHOAL_PCH)
    target_precompile_headers(${target} REUSE_FROM shoal_test_pch)
    # The program's own sources among a test's are compiled as they are elsewhere. clang-tidy reads
    # their commands too, and cannot read g++'s precompiled headers.
    if(ARG_OWN_SOURCES)
      set_source_files_properties(${ARG_OWN_SOURCES} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endif()
  target_compile_definitions(${target} PRIVATE SHOAL_TEST_DATA="${SHOAL_ROOT}/tests/data"
                                               SHOAL_SOURCE_DIR="${SHOAL_ROOT}")
endfunction()

# shoal_test_timeout(OUT SECONDS): how long a test may take. scripts/test, which configures the
# build with SHOAL_TEST_BREADTH=pairs, gives no test more than 300 s (scripts/run_parts.py), so that one
# that hangs costs no more. With more combinations the same tests take as long as they ask for.
function(shoal_test_timeout out seconds)
  if(seconds GREATER 300 AND "$ENV{SHOAL_TEST_BREADTH}" STREQUAL pairs)
    set(seconds 300)
  endif()
  math(EXPR seconds "${seconds} * ${SHOAL_TIMEOUT_FACTOR}")
  set(${out} ${seconds} PARENT_SCOPE)
endfunction()

# shoal_label_bits(TEST): gives the label `bits` to the tests that compare bits and do little else.
# They have no deadline and no order of processes to lose, so that scripts/test repeats none of them.
function(shoal_label_bits name)
  get_test_property(${name} LABELS labels)
  if("clock" IN_LIST labels)
    return()
  endif()
  if(name MATCHES "^(kernels|models|emulator)/|^e2e/(same_bits|oracle|device_model/(oracle|same-bits))/"
     OR name MATCHES "^(e2e/(arithmetic|compilers|device_model/batch)|runtime/(worker/arithmetic|comm/tree_sum)_test)$")
    set_property(TEST ${name} APPEND PROPERTY LABELS bits)
  endif()
endfunction()

# shoal_register_test(status_test COMMAND ... [LABELS unit] [TIMEOUT seconds]): tells CTest of the
# test under the folder's name, e.g. runtime/base/status_test.
function(shoal_register_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "COMMAND;LABELS" ${ARGN})
  file(RELATIVE_PATH folder ${SHOAL_ROOT}/tests ${CMAKE_CURRENT_SOURCE_DIR})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  shoal_test_timeout(ARG_TIMEOUT ${ARG_TIMEOUT})
  add_test(NAME ${folder}/${name}
           COMMAND ${SHOAL_OWN_DEV_SHM} ${CMAKE_CROSSCOMPILING_EMULATOR} ${ARG_COMMAND})
  set_tests_properties(${folder}/${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
                                                    ENVIRONMENT "${SHOAL_TEST_ENVIRONMENT}")
  shoal_sanitizer_options(${folder}/${name})
  shoal_schedule(${folder}/${name})
  shoal_label_bits(${folder}/${name})
  shoal_emulated(${folder}/${name})
endfunction()

# shoal_opens(TARGET LIBRARY...): the target opens these stand-ins of tests/emulator and tests/fakes
# at run time. They are built before it, and sources find their paths in SHOAL_EMULATED_MODULE,
# SHOAL_FAKE_NCCL and SHOAL_FAKE_CUBLAS.
set(SHOAL_PATH_OF_emulated_cuda_module SHOAL_EMULATED_MODULE)
set(SHOAL_PATH_OF_fake_nccl SHOAL_FAKE_NCCL)
set(SHOAL_PATH_OF_fake_cublaslt SHOAL_FAKE_CUBLAS)
function(shoal_opens target)
  foreach(library ${ARGN})
    add_dependencies(${target} ${library})
    target_compile_definitions(${target}
                               PUBLIC ${SHOAL_PATH_OF_${library}}="$<TARGET_FILE:${library}>")
  endforeach()
endfunction()

# shoal_test(status_test DEPS shoal_base [LABELS unit] [SOURCES ...] [OPENS fake_nccl ...]
# [TIMEOUT seconds] [COMPUTES]): builds NAME.cc of the current folder into a program of its own and
# registers it. OPENS: see shoal_opens(). COMPUTES says that its own code takes much of its time, so
# that it is worth optimizing.
function(shoal_test name)
  cmake_parse_arguments(ARG "COMPUTES" "TIMEOUT" "DEPS;LABELS;OPENS;SOURCES" ${ARGN})
  file(RELATIVE_PATH folder ${SHOAL_ROOT}/tests ${CMAKE_CURRENT_SOURCE_DIR})
  string(REPLACE "/" "_" prefix ${folder})
  set(target test_${prefix}_${name})
  shoal_test_program(${target} SOURCES ${name}.cc OWN_SOURCES ${ARG_SOURCES}
                     DEPS ${ARG_DEPS} GTest::gtest_main)
  shoal_opens(${target} ${ARG_OPENS})
  if(ARG_COMPUTES AND NOT SHOAL_SANITIZE)
    # An option of the source comes after the -O0 of the target, and therefore counts.
    set_source_files_properties(${name}.cc PROPERTIES COMPILE_OPTIONS -O1
                                                      SKIP_PRECOMPILE_HEADERS ON)
  endif()
  shoal_register_test(${name} COMMAND $<TARGET_FILE:${target}> LABELS ${ARG_LABELS}
                      TIMEOUT ${ARG_TIMEOUT})
endfunction()

# shoal_tests(fd_test status_test ... DEPS shoal_base [LABELS unit] [TIMEOUT seconds] [ONE_THREAD]):
# builds these files of the current folder into one program, test_FOLDER, and registers each file as
# one test of CTest. ONE_THREAD says that none of them starts a thread, so that ThreadSanitizer has
# nothing to find in them and its build leaves them out.
function(shoal_tests)
  cmake_parse_arguments(ARG "ONE_THREAD" "TIMEOUT" "DEPS;LABELS" ${ARGN})
  if(ARG_ONE_THREAD AND SHOAL_SANITIZE MATCHES thread)
    return()
  endif()
  file(RELATIVE_PATH folder ${SHOAL_ROOT}/tests ${CMAKE_CURRENT_SOURCE_DIR})
  string(REPLACE "/" "_" prefix ${folder})
  set(target test_${prefix})
  list(TRANSFORM ARG_UNPARSED_ARGUMENTS APPEND .cc OUTPUT_VARIABLE sources)
  shoal_test_program(${target} SOURCES ${sources} ${SHOAL_ROOT}/tests/one_file_main.cc
                     DEPS ${ARG_DEPS})
  shoal_unity(${target})
  foreach(name ${ARG_UNPARSED_ARGUMENTS})
    shoal_register_test(${name} COMMAND $<TARGET_FILE:${target}> --of-file=${name}.cc
                        LABELS ${ARG_LABELS} TIMEOUT ${ARG_TIMEOUT})
  endforeach()
endfunction()

# shoal_python_test(e2e/oracle SCRIPT oracle_test.py [ARGS ...] [LABELS e2e] [TIMEOUT seconds]):
# runs the script against the program just built, whose path it finds in $SHOAL; exit code 77 means
# skipped.
function(shoal_python_test name)
  cmake_parse_arguments(ARG "" "SCRIPT;TIMEOUT;PYTHON" "ARGS;LABELS" ${ARGN})
  if(NOT ARG_PYTHON)
    set(ARG_PYTHON ${SHOAL_PYTHON})
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS e2e)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  shoal_test_timeout(ARG_TIMEOUT ${ARG_TIMEOUT})
  add_test(NAME ${name} COMMAND ${SHOAL_OWN_DEV_SHM} ${ARG_PYTHON}
             ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_SCRIPT} ${ARG_ARGS})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
                       SKIP_RETURN_CODE 77
                       ENVIRONMENT "SHOAL=$<TARGET_FILE:shoal>;${SHOAL_TEST_ENVIRONMENT}")
  # The script says where it is before CTest kills it.
  math(EXPR patience "${ARG_TIMEOUT} - 15")
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT SHOAL_TEST_PATIENCE=${patience})
  shoal_sanitizer_options(${name})
  shoal_schedule(${name})
  shoal_label_bits(${name})
  shoal_emulated(${name})
endfunction()
