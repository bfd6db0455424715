#include "models/chat_template/content_format.h"

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>

namespace shoal::jinja {
namespace {

using Names = std::vector<std::string>;

bool has_name(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// The expression without filters, tests and slices around it.
const Expr& bare(const Expr& expr) {
  const bool wraps = expr.kind == ExprKind::kFilter || expr.kind == ExprKind::kTest ||
                     expr.kind == ExprKind::kSlice;
  return wraps && expr.children[0] != nullptr ? bare(*expr.children[0]) : expr;
}

bool is_variable(const Expr& expr, const Names& names) {
  const Expr& inner = bare(expr);
  return inner.kind == ExprKind::kName && has_name(names, inner.text);
}

bool is_content(const Expr& expr, const Names& messages) {
  const Expr& inner = bare(expr);
  if (inner.kind == ExprKind::kAttribute)
    return inner.text == "content" && is_variable(*inner.children[0], messages);
  if (inner.kind != ExprKind::kItem || inner.children[1]->kind != ExprKind::kConstant) return false;
  const Value& key = inner.children[1]->constant;
  return key.is(Type::kString) && view_of(key) == "content" &&
         is_variable(*inner.children[0], messages);
}

void for_each_statement(const Block& block, const std::function<void(const Stmt&)>& visit) {
  for (const StmtPtr& stmt : block) {
    visit(*stmt);
    for (const Block& inner : stmt->blocks) for_each_statement(inner, visit);
  }
}

bool tests_for_string(const Expr& expr) {
  if (expr.kind == ExprKind::kTest && expr.text == "string") return true;
  const auto in = [](const ExprPtr& part) { return part != nullptr && tests_for_string(*part); };
  const CallSyntax& call = expr.call;
  return std::any_of(expr.children.begin(), expr.children.end(), in) ||
         std::any_of(call.positional.begin(), call.positional.end(), in) ||
         std::any_of(call.keywords.begin(), call.keywords.end(),
                     [&](const auto& keyword) { return in(keyword.second); });
}

/// Adds the variables to which one of `names`, or something that `matches`, is assigned.
void add_aliases(const SyntaxTree& tree, Names& names,
                 const std::function<bool(const Expr&)>& matches) {
  for (size_t before = names.size() + 1; before != names.size();) {
    before = names.size();
    for_each_statement(tree.body, [&](const Stmt& stmt) {
      if (stmt.kind != StmtKind::kSet || stmt.target->kind != ExprKind::kName) return;
      const Expr& value = *stmt.exprs[0];
      if ((is_variable(value, names) || matches(value)) && !has_name(names, stmt.target->text))
        names.push_back(stmt.target->text);
    });
  }
}

}  // namespace

ContentFormat find_content_format(const SyntaxTree& tree) {
  const auto nothing = [](const Expr&) { return false; };
  Names lists = {"messages"}, messages, contents;
  add_aliases(tree, lists, nothing);
  for_each_statement(tree.body, [&](const Stmt& stmt) {
    const bool loops = stmt.kind == StmtKind::kFor && is_variable(*stmt.exprs[0], lists);
    if (loops && stmt.target->kind == ExprKind::kName) messages.push_back(stmt.target->text);
  });
  add_aliases(tree, contents, [&](const Expr& expr) { return is_content(expr, messages); });
  ContentFormat format;
  for_each_statement(tree.body, [&](const Stmt& stmt) {
    if (stmt.kind == StmtKind::kFor &&
        (is_content(*stmt.exprs[0], messages) || is_variable(*stmt.exprs[0], contents)))
      format.iterates = true;
    for (const ExprPtr& expr : stmt.exprs)
      if (expr != nullptr && tests_for_string(*expr)) format.tests_string = true;
  });
  return format;
}

}  // namespace shoal::jinja
