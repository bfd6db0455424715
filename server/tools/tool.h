#pragma once

namespace shoal {

// Each is the main() of a program that is one command of shoal: it returns the exit code. --version
// is known besides what the command reads.

int shmtest_tool(int argc, char** argv);

/// Also the ranks and the probe that doctor starts from this same executable.
int doctor_tool(int argc, char** argv);

}  // namespace shoal
