#include "server/tools/tool.h"

/// `shoal doctor` as a program of its own.
int main(int argc, char** argv) {
  return shoal::doctor_tool(argc, argv);
}
