# Checks that the module exports one symbol only, has no library search path, and needs no library
# that a machine without a GPU may lack.
# Usage: exports.cmake with -DNM= -DREADELF= -DMODULE=.
execute_process(COMMAND ${NM} --dynamic --defined-only --format=posix ${MODULE}
                OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]+" symbols "${symbols}")
list(LENGTH symbols count)
if(NOT count EQUAL 1 OR NOT symbols MATCHES "^shoal_cuda_module ")
  message(FATAL_ERROR
          "${MODULE} exports ${count} symbols, not shoal_cuda_module alone:\n${symbols}")
endif()

execute_process(COMMAND ${READELF} --dynamic --wide ${MODULE} OUTPUT_VARIABLE dynamic
                COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "Shared library: \\[[^]]+\\]" needed "${dynamic}")
foreach(library IN LISTS needed)
  if(library MATCHES "libcuda|libcudart|libnccl|libcublas|libnvidia")
    message(FATAL_ERROR "${MODULE} needs a library of the CUDA toolkit or the driver: ${library}")
  endif()
endforeach()
if(dynamic MATCHES "RPATH|RUNPATH")
  message(FATAL_ERROR "${MODULE} has a search path of its own:\n${dynamic}")
endif()
message(STATUS "one symbol; needs: ${needed}")
