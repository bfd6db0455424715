#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace shoal {

// What the reader of a descriptor can show, if it is a terminal.

bool is_terminal(int fd);

/// Whether text for this descriptor may have colours: it is a terminal that can show them (TERM is
/// neither empty nor "dumb"), or CLICOLOR_FORCE is set and not "0". Never if NO_COLOR is set and
/// not empty, which wins over CLICOLOR_FORCE.
bool wants_colour(int fd);

/// Columns of a line: those of the variable COLUMNS if it is a number in [20, 10000], else those of
/// the terminal, else kUsualColumns.
size_t columns_of(int fd);
inline constexpr size_t kUsualColumns = 80;

enum class Paint { kBold, kRed, kYellow, kGreen };

/// The text between the escape sequences of this paint; unchanged unless `wanted`.
std::string painted(std::string_view text, Paint paint, bool wanted);

}  // namespace shoal
