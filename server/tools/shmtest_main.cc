#include "server/tools/tool.h"

/// `shoal shmtest` as a program of its own.
int main(int argc, char** argv) {
  return shoal::shmtest_tool(argc, argv);
}
