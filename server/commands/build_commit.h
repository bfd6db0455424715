#pragma once

namespace shoal {

/// The git commit that the program was built from. cmake/write_commit.cmake writes the definition.
struct BuildCommit {
  const char* id;    ///< twelve hexadecimal digits; "unknown" outside a git checkout
  const char* date;  ///< of the commit, such as 2026-11-21; empty if unknown
  bool dirty;        ///< tracked files differed from the commit when it was built
};

const BuildCommit& build_commit();

}  // namespace shoal
