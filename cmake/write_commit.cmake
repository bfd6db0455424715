# cmake -D SOURCE=... -D OUT=commit.cc -P write_commit.cmake: writes a C++ source file with the
# commit that is built.
#
# It runs in every build, but changes the file only if the commit or the state of the work tree has
# changed. A build without a change therefore compiles and links nothing. Outside a git checkout (a
# tarball, an image's build context) the commit is "unknown".
set(commit unknown)
set(date "")
set(dirty false)
find_program(GIT git)
if(GIT)
  # Accept the repository only if SOURCE is its root. A tarball that was unpacked inside another
  # repository does not belong to that repository's commit.
  execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse --show-toplevel
    OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  file(REAL_PATH ${SOURCE} root)
  if(NOT failed AND top STREQUAL root)
    execute_process(COMMAND ${GIT} -C ${SOURCE} log -1 --format=%H\ %cs
      OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed AND head MATCHES "^([0-9a-f]+) ([0-9-]+)$")
      string(SUBSTRING ${CMAKE_MATCH_1} 0 12 commit)
      set(date ${CMAKE_MATCH_2})
      execute_process(COMMAND ${GIT} -C ${SOURCE} status --porcelain --untracked-files=no
                      OUTPUT_VARIABLE changes ERROR_QUIET)
      if(changes)
        set(dirty true)
      endif()
    endif()
  endif()
endif()

set(text "#include \"server/commands/build_commit.h\"\n\nnamespace shoal {\n
const BuildCommit& build_commit() {
  static const BuildCommit commit{\"${commit}\", \"${date}\", ${dirty}};
  return commit;
}\n\n}  // namespace shoal\n")
set(before "")
if(EXISTS ${OUT})
  file(READ ${OUT} before)
endif()
if(NOT text STREQUAL before)
  file(WRITE ${OUT} "${text}")
endif()
