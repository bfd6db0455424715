# When and beside what CTest runs a test (shoal_schedule in cmake/shoal_targets.cmake). A name that
# stands in none of these tables is a short test whose verdict does not depend on time.

# The label `clock`: the verdict depends on time. These tests run after the others, two at a time.
# tests/lint/clock.py finds those whose sources sleep, stop a process, or have a time-out below ten
# seconds. Of the others that stand here, the program has such a time-out: planted_fault_test,
# ladder_test, e2e/matrix, e2e/nccl, e2e/model_files and e2e/shutdown. Each entry is a regular
# expression for whole names.
set(SHOAL_CLOCK_TESTS
    "emulator/(memory|stream)_test"
    "models/held_file_test"
    "runtime/base/(patient_writer|running_clock|thread_pool|wait)_test"
    "runtime/comm/(fault|slot_flags|tcp/tcp_mesh)_test"
    "runtime/comm/device/(nccl_failure|staged_communicator)_test"
    "runtime/control/channel_test"
    "runtime/device/device_test"
    "runtime/rank/rank_test"
    "runtime/supervisor/(gpu_probe|group_failure|ladder|process_end|process_state)_test"
    "runtime/supervisor/(supervisor|supervisor_shortage|worker_group)_test"
    "runtime/transport/planted_fault_test"
    "server/grpc/grpc_(control|lifecycle)_test"
    "server/host/model_watch_test"
    "server/serving/(inference_loop|request_figures)_test"
    "e2e/(admission|connections|device|faults|grpc_client|grpc_facades|kill_cycles|long_parts)"
    "e2e/(model_files|openai_client|pauses|places|random_faults|service|shortage|shutdown|walks)"
    "e2e/(around/Nginx|device_model/(faults|gpu_check/.*)|matrix/.*|nccl/.*|recovery/.*)"
    "e2e/(http/(Api|abuse|crowds|ends|tls_ends)|shmtest|shmtest_stuck|shmtest_trace|tls/Wire)")

# CTest starts what costs most first, so that no processor is idle at the end. The numbers are about
# the seconds of the release build; what is not listed costs less than the least of them. A sanitizer
# slows the computing ones most.
set(SHOAL_TEST_COSTS runtime/transport/planted_fault_test=120 runtime/comm/fault_test=110
    runtime/comm/device/nccl_failure_test=100 e2e/http/ends=46 e2e/same_bits/logits/demo=39
    e2e/metrics=39 conformance/communicator_test=36 conformance/device_kernels=14 e2e/doctor=33
    runtime/comm/device/nccl_collective_test=30 e2e/scheduling=28 e2e/admission=26
    runtime/engine/scheduler_model_test=21 e2e/places=20 e2e/shmtest=19 e2e/http/abuse=18
    runtime/supervisor/supervisor_test=17 runtime/worker/model_runner_test=17
    conformance/device_nccl=15 e2e/tls/Rotation=15 conformance/device_table=12 e2e/exit_codes=12
    e2e/shmtest_trace=8
    e2e/examples/ShmtestStep=12 conformance/device_cuda-ipc=10 conformance/device_host-memfd=10
    conformance/device_tcp=10 e2e/contributing=9
    e2e/recovery/serving=112 e2e/shortage=63 e2e/faults=58 e2e/pauses=57 e2e/recovery/streams/tcp=53
    e2e/recovery/streams/shm=45 e2e/recovery/phases/shm=43 e2e/matrix/2=42 e2e/model_files=39
    e2e/nccl/Sizes=16 e2e/nccl/Running=13 e2e/service=11 e2e/kill_cycles=7)

# How many of the tests that may run at once a test counts as: its ranks spin, so that it takes
# processors from its neighbours. Of the four that scripts/test runs at once on two processors, 3
# leaves room for one beside it. Of the two that it runs at once at the end, 2 leaves none.
set(SHOAL_TEST_PROCESSORS runtime/transport/planted_fault_test=2 runtime/comm/fault_test=2
    runtime/comm/device/nccl_failure_test=2 e2e/faults=2 e2e/kill_cycles=2 e2e/long_parts=2
    conformance/communicator_test=3 runtime/transport/self_test_test=3
    runtime/comm/device/nccl_collective_test=3 runtime/comm/device/nccl_memory_test=3
    conformance/device_kernels=2 conformance/device_kernels_types=2
    conformance/device_kernels_sm80=2 conformance/device_cuda-ipc=3 conformance/device_host-memfd=3
    conformance/device_tcp=3 conformance/device_nccl=3 conformance/device_table=2)
