# Objects compiled for more than the base processor may export symbols of their own namespace only. The linker
# could take any function that other objects define too (std::, inline members) from such an object,
# and that function would crash the program on a processor without these instructions.
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND ${NM} --demangle --defined-only ${object} OUTPUT_VARIABLE symbols
                  RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${NM} ${object}: ${failed}")
  endif()
  string(REGEX MATCHALL "[^\n]+" lines "${symbols}")
  set(own 0)
  foreach(line IN LISTS lines)
    if(line MATCHES "^[0-9a-f]+ T ${NAMESPACE}")
      math(EXPR own "${own} + 1")
    elseif(line MATCHES "^[0-9a-f]+ [TWi] ")  # code symbols: strong, weak, indirect
      message(FATAL_ERROR "${object} defines ${line}")
    endif()
  endforeach()
  if(own EQUAL 0)
    message(FATAL_ERROR
            "${object} defines nothing in ${NAMESPACE}: the check looks at the wrong thing")
  endif()
endforeach()
