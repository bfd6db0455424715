#include "runtime/base/ordered_json.h"
#include "server/cli/command_table.h"
#include "server/cli/exit_code.h"

namespace shoal {
namespace {

OrderedJson flag_json(const FlagEntry& entry, const std::string& heading) {
  OrderedJson flag = {{"names", entry.names}, {"group", heading}, {"help", entry.help}};
  flag["value"] = entry.takes_value ? OrderedJson(entry.value.label) : OrderedJson();
  if (!entry.value.choices.empty()) flag["choices"] = entry.value.choices;
  flag["default"] = entry.initial ? OrderedJson(*entry.initial) : OrderedJson();
  return flag;
}

}  // namespace

std::string help_json(const std::vector<CommandEntry>& commands) {
  OrderedJson list = OrderedJson::array();
  for (const CommandEntry& command : commands) {
    OrderedJson flags = OrderedJson::array(), examples = OrderedJson::array();
    for (const FlagGroup& group : command.groups) {
      for (const FlagEntry& entry : group.flags) flags.push_back(flag_json(entry, group.heading));
    }
    for (const Example& example : command.examples)
      examples.push_back({{"words", example.words}, {"what", example.what}});
    list.push_back({{"name", command.name},
                    {"operand", operand_text(command.operand)},
                    {"summary", command.summary},
                    {"flags", flags},
                    {"examples", examples}});
  }
  return json_text(OrderedJson{{"commands", list}}) + "\n";
}

}  // namespace shoal
