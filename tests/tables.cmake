# When and beside what CTest runs a test (shoal_schedule in cmake/shoal_targets.cmake). A name that
# stands in none of these tables is a short test whose verdict does not depend on time.

# The label `clock`: the verdict depends on time. These tests run after the others, two at a time.
# tests/lint/clock.py finds those whose sources sleep, stop a process, or have a time-out below ten
# seconds. Of the others that stand here, the time-out is in the program, or is computed:
# planted_fault_test, e2e/kill_cycles, e2e/shutdown and e2e/hostile_bytes. Each entry is a regular expression for whole
# names. The same script finds entries of all tables here that are the name of no test.
set(SHOAL_CLOCK_TESTS
    "conformance/device_(cuda-ipc|host-memfd|tcp)"
    "runtime/base/(patient_writer|running_clock|thread_pool|wait)_test"
    "runtime/comm/(fault|slot_flags|tcp/tcp_mesh)_test"
    "runtime/comm/device/nccl_failure_test"
    "runtime/control/channel_test"
    "runtime/rank/rank_test"
    "runtime/supervisor/(gpu_probe|group_failure|process_end|process_state)_test"
    "runtime/supervisor/(group_start|start_watch|step_watch|worker_group)_test"
    "runtime/supervisor/(core_dump|supervisor|supervisor_device|supervisor_hang|supervisor_shortage)_test"
    "runtime/transport/planted_fault_test"
    "server/grpc/grpc_lifecycle_test"
    "server/host/model_watch_test"
    "server/serving/(inference_loop|request_figures)_test"
    "e2e/(admission|connections|core_dump|device|faults|grpc_client|grpc_facades|kill_cycles|log_fields|long_parts)"
    "e2e/(denied|metrics|model_files|pauses|places|random_faults|kill_storm/.*|service|shortage|shutdown|silent_files|walks)"
    "e2e/(around/Nginx|device_model/(faults/.*|names|planted|restart|gpu_check/.*)|recovery/.*)"
    "e2e/hostile_bytes/(EightConnections|Peak|Slowly)"
    "e2e/(http/(Api|abuse|crowds|ends|tls_ends)|shmtest(_search|_stuck|_trace)?|tls/Wire)")

# CTest starts the tests with the greatest cost first, so that no processor is idle at the end. A
# cost is about the seconds that the test takes in the release build. A test that is not listed
# costs less than any that is. A sanitizer slows tests that compute most. Costs from 90 on are not
# seconds: they belong to tests that count as several (below). These run first, and those that count
# as most run before the others. There is room for the next of them only when one has ended, so
# later ones would wait until the end and run alone. Costs from 81 to 89 belong to tests of
# scripts/test --all that take from two to twelve minutes.
set(SHOAL_TEST_COSTS conformance/communicator_test=99
    runtime/comm/device/nccl_collective_test=98 runtime/comm/device/nccl_memory_test=97
    runtime/transport/self_test_test=96 conformance/device_nccl=95 conformance/device_cuda-ipc=95
    conformance/device_host-memfd=95 conformance/device_tcp=95 conformance/device_kernels=94
    conformance/device_kernels_types=94 conformance/device_kernels_sm80=94
    conformance/device_table=94 runtime/transport/planted_fault_test=93 runtime/comm/fault_test=92
    runtime/comm/device/nccl_failure_test=91 e2e/faults=90 e2e/nccl/Running=90 e2e/nccl/Sizes=90
    e2e/nccl/Newest=90 e2e/nccl/Settings=90 e2e/nccl/Unknown=90 e2e/nccl/Seeds=90
    e2e/matrix/4=90 e2e/matrix/8=90 e2e/device_model/smollm2=89 e2e/gpu_check/bare=88
    e2e/static_build=87 e2e/compilers=86 lint/headers=85 e2e/same_bits/generate/demo=84
    e2e/device_model/library=83 e2e/same_bits/kernels/demo=82 kernels/cuda/code=81
    e2e/recovery/streams/tcp=53 e2e/recovery/serving=47
    e2e/shortage=41 e2e/device_model/restart=80
    e2e/recovery/streams/shm=40
    e2e/same_bits/logits/demo=39 e2e/pauses=33 e2e/matrix/2=27
    e2e/http/ends=24 e2e/recovery/phases/shm=23 e2e/device_model/same-bits/llama3-gqa-tied-sharded=21
    e2e/device_model/places=20 e2e/model_files=20 e2e/silent_files=20
    e2e/admission=17 e2e/service=16 e2e/shutdown=15 e2e/tls/Rotation=14
    runtime/supervisor/supervisor_test=10
    runtime/supervisor/supervisor_hang_test=10
    e2e/shmtest=14 e2e/shmtest_search=10 e2e/command_line=13 e2e/scheduling=12
    e2e/metrics=12 e2e/doctor=12 models/tokenizer_test=12 e2e/exit_codes=12
    e2e/examples/ShmtestStep=12 runtime/worker/model_runner_test=12 e2e/places=11
    models/chat_template_test=11 runtime/worker/sampler_test=10 e2e/contributing=9
    e2e/shmtest_trace=8 e2e/kill_cycles=7)

# Tests of scripts/test --all that take from one to ten minutes: each runs on one day of three, whose
# number stands here, in the release build. The sums of the days are about the same.
set(SHOAL_TESTS_BY_DAY e2e/device_model/smollm2=0 conformance/device_kernels_sm80=1
    conformance/device_kernels_types=1 e2e/device_model/library=1 kernels/cuda/code=2
    e2e/compilers=2 e2e/gpu_check/bare=1 e2e/static_build=2 e2e/same_bits/generate/demo=2)

# Tests that count as several, and as how many. Their ranks spin or compute, and take processors
# from the tests beside them. On two processors scripts/test runs four tests at once, so a test that
# counts as 3 leaves room for one more. At the end it runs two at once, so a test that counts as 2
# runs alone.
set(SHOAL_TEST_PROCESSORS runtime/transport/planted_fault_test=2 runtime/comm/fault_test=2
    runtime/comm/device/nccl_failure_test=2 e2e/kill_cycles=2 e2e/long_parts=2 e2e/faults=2
    e2e/matrix/4=2 e2e/matrix/8=2 e2e/nccl/Running=2 e2e/nccl/Sizes=2 e2e/nccl/Newest=2
    e2e/nccl/Settings=2 e2e/nccl/Unknown=2 e2e/nccl/Seeds=2 e2e/hostile_bytes/EightConnections=2
    conformance/communicator_test=3 runtime/transport/self_test_test=3
    runtime/comm/device/nccl_collective_test=3 runtime/comm/device/nccl_memory_test=3
    conformance/device_kernels=2 conformance/device_kernels_types=2
    conformance/device_kernels_sm80=2 conformance/device_cuda-ipc=3 conformance/device_host-memfd=3
    conformance/device_tcp=3 conformance/device_nccl=3 conformance/device_table=2)

# The label `arm64`: in the build for another processor these run under its emulator. What only that
# build has gets the label where it stands.
set(SHOAL_EMULATED_TESTS kernels/kernel_table_test kernels/packed_matrix_test
    kernels/matmul_test kernels/leaf_fold_test kernels/attention_test kernels/same_bits_test
    kernels/elementwise_test kernels/vocab_test
    runtime/base/dtype_test runtime/base/ieee_math_test runtime/base/thread_pool_test
    runtime/comm/tree_sum_test models/rope_test runtime/worker/sampler_test
    runtime/worker/arithmetic_test conformance/communicator_test conformance/device_table
    conformance/device_cuda-ipc conformance/device_host-memfd conformance/device_tcp
    conformance/device_nccl)

# Their children provoke reports, of a race that ThreadSanitizer must see and of signals, which are
# no failure. What else a sanitizer sees there fails these tests by an exit code alone.
set(SHOAL_TESTS_THAT_PROVOKE_REPORTS emulator/lanes_test runtime/supervisor/group_failure_test)

# Their clients of gRPC end because TLS was refused (tests/suppressions/lsan.txt).
set(SHOAL_TESTS_THAT_REFUSE_TLS e2e/client_ports e2e/tls/Wire e2e/tls/Keys)
