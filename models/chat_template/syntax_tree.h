#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/chat_template/value.h"

namespace shoal::jinja {

enum class ExprKind {
  kConstant,
  kName,
  kTuple,  ///< children are the items
  kList,
  kDict,       ///< children are key, value, key, value ...
  kAttribute,  ///< children[0].text
  kItem,       ///< children[0][children[1]]
  kSlice,      ///< children[0][children[1]:children[2]:children[3]]; a bound may be null
  kCall,       ///< children[0](...)
  kFilter,     ///< children[0] | text(...); children[0] is null in a filter block
  kTest,       ///< children[0] is text(...)
  kUnary,      ///< text is the operator: "-", "+" or "not"
  kBinary,     ///< text is the operator: + - * / // % **, "and", "or"
  kConcat,     ///< children joined with ~
  kCompare,    ///< children[0] operators[0] children[1] operators[1] ...
  kCondition,  ///< children[0] if children[1] else children[2], which may be null
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

/// The arguments of a call, filter or test as they are written.
struct CallSyntax {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  ExprPtr star;         ///< *expression
  ExprPtr double_star;  ///< **expression
};

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  size_t at = 0;   ///< byte in the source
  int height = 1;  ///< of the tree below; bounded, because trees are walked by recursion
  int name = -1;   ///< kName: index into SyntaxTree::names
  std::string text;
  Value constant;
  std::vector<ExprPtr> children;
  std::vector<std::string> operators;
  CallSyntax call;
};

enum class StmtKind {
  kText,         ///< text
  kPrint,        ///< exprs[0]
  kIf,           ///< exprs[i] guards blocks[i]; a last block without an expression is the else
  kFor,          ///< target in exprs[0] if exprs[1], which may be null; blocks: body, else
  kSet,          ///< target = exprs[0]
  kSetBlock,     ///< target is the text of blocks[0], filtered by exprs[0], which may be null
  kMacro,        ///< target is its name; parameters, blocks[0]
  kCallBlock,    ///< exprs[0] is called with the macro of blocks[0] as caller
  kFilterBlock,  ///< exprs[0] over the text of blocks[0]
  kWith,         ///< the parameters with their values are visible in blocks[0]
  kGeneration,   ///< blocks[0]
  kBreak,
  kContinue,
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Block = std::vector<StmtPtr>;

struct Parameter {
  ExprPtr target;    ///< kName; in `with` also a tuple
  ExprPtr fallback;  ///< null: none
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  size_t at = 0;
  Value text;      ///< kText: a constant string
  ExprPtr target;  ///< kName, kTuple of them, or kAttribute of a name
  std::vector<ExprPtr> exprs;
  std::vector<Block> blocks;
  std::vector<Parameter> parameters;
  bool uses_varargs = false;  ///< kMacro, kCallBlock: the body names these special parameters
  bool uses_kwargs = false;
  bool uses_caller = false;
};

/// A template that was parsed. Immutable.
struct SyntaxTree {
  std::string source;  ///< normalized
  std::vector<std::string> names;
  Block body;
};

}  // namespace shoal::jinja
