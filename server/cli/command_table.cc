#include "server/cli/command_table.h"

namespace shoal {

ValueForm one_of(std::vector<std::string> choices, std::string label) {
  ValueForm form("");
  if (label.empty()) {
    for (const std::string& choice : choices) label += (label.empty() ? "" : "|") + choice;
  }
  form.label = std::move(label);
  form.choices = std::move(choices);
  return form;
}

ValueForm path(const char* label) {
  ValueForm form(label);
  form.is_path = true;
  return form;
}

ValueForm list_of(const char* label) {
  ValueForm form(label);
  form.several = ValueForm::Several::kCommas;
  return form;
}

std::string operand_text(Operand operand) {
  switch (operand) {
    case Operand::kNone:
      return "";
    case Operand::kModel:
      return "MODEL";
    case Operand::kModelOrNone:
      return "[MODEL]";
    case Operand::kCommand:
      return "-- COMMAND";
  }
  return "";
}

}  // namespace shoal
