#include "models/chat_template/parser.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "models/chat_template/expression_parser.h"
#include "runtime/base/cat.h"

namespace shoal::jinja {
namespace {

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Block parse_template() {
    Block body = parse_block({});
    fail_on_unknown();
    return body;
  }

 private:
  using Ends = std::initializer_list<std::string_view>;

  StmtPtr make_stmt(StmtKind kind) const {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->at = current().at;
    return stmt;
  }

  void expect_block_end() {
    if (current().kind != TokenKind::kBlockEnd)
      return fail_here(cat("expected '%}', got ", described(current())));
    advance();
  }

  /// Reads statements up to a tag of `ends`, whose name is then the current token, or to the end of
  /// the template if there are none.
  Block parse_block(Ends ends) {
    const Nesting nesting(*this);
    Block block;
    const size_t begin = current().at;
    while (ok()) {
      switch (current().kind) {
        case TokenKind::kData:
          block.push_back(make_stmt(StmtKind::kText));
          block.back()->text = constant_string(Text(current().text, false));
          advance();
          break;
        case TokenKind::kVariableBegin:
          block.push_back(parse_print());
          break;
        case TokenKind::kBlockBegin:
          advance();
          if (current().kind != TokenKind::kName)
            fail_here(cat("expected the name of a tag, got ", described(current())));
          if (std::find(ends.begin(), ends.end(), current().text) != ends.end()) return block;
          if (StmtPtr stmt = parse_statement()) block.push_back(std::move(stmt));
          expect_block_end();
          break;
        default:
          if (ends.size() > 0)
            fail(cat("the template ends before '", *(ends.end() - 1), "'"), begin);
          return block;
      }
    }
    return block;
  }

  /// The end of a tag, the block, and the name of the tag that ends it.
  Block parse_body(Ends ends) {
    skip_operator(":");
    expect_block_end();
    return parse_block(ends);
  }

  /// The same in a frame of its own, up to one tag, which is consumed.
  Block parse_framed_body(std::string_view end) {
    ++frame_;
    Block body = parse_body({end});
    --frame_;
    advance();
    return body;
  }

  StmtPtr parse_print() {
    StmtPtr stmt = make_stmt(StmtKind::kPrint);
    advance();
    stmt->exprs.push_back(parse_tuple());
    if (current().kind != TokenKind::kVariableEnd)
      fail_here(cat("expected '}}', got ", described(current())));
    advance();
    return stmt;
  }

  StmtPtr parse_statement() {
    using Statement = StmtPtr (Parser::*)();
    static constexpr std::array<std::pair<std::string_view, Statement>, 10> kRules = {{
        {"if", &Parser::parse_if},
        {"for", &Parser::parse_for},
        {"set", &Parser::parse_set},
        {"macro", &Parser::parse_macro},
        {"call", &Parser::parse_call_block},
        {"filter", &Parser::parse_filter_block},
        {"with", &Parser::parse_with},
        {"generation", &Parser::parse_generation},
        {"break", &Parser::parse_jump},
        {"continue", &Parser::parse_jump},
    }};
    const std::string& name = current().text;
    for (const auto& [known, rule] : kRules)
      if (name == known) return (this->*rule)();
    static constexpr std::string_view kUnsupported[] = {"include", "import",     "from", "extends",
                                                        "block",   "autoescape", "print"};
    const bool is_known =
        std::find(std::begin(kUnsupported), std::end(kUnsupported), name) != std::end(kUnsupported);
    fail_here(is_known ? cat("'", name, "' is not supported in chat templates")
                       : cat("unknown tag '", name, "'"));
    return nullptr;
  }

  StmtPtr parse_if() {
    StmtPtr stmt = make_stmt(StmtKind::kIf);
    const size_t mark = mark_unknown();
    advance();
    for (bool has_more = true; has_more && ok();) {
      stmt->exprs.push_back(parse_tuple(Condition::kNotAllowed));
      stmt->blocks.push_back(parse_body({"elif", "else", "endif"}));
      has_more = skip_name("elif");
    }
    if (skip_name("else")) stmt->blocks.push_back(parse_body({"endif"}));
    advance();
    forgive_unknown(mark);
    return stmt;
  }

  StmtPtr parse_for() {
    StmtPtr stmt = make_stmt(StmtKind::kFor);
    advance();
    ++loops_;
    stmt->target = parse_target("in", false);
    --loops_;
    expect_name("in");
    stmt->exprs.push_back(parse_tuple(Condition::kNotAllowed, "recursive"));
    ++frame_;
    stmt->exprs.push_back(skip_name("if") ? parse_expression() : nullptr);
    if (sees_name("recursive")) fail_here("recursive loops are not supported");
    ++loops_;
    stmt->blocks.push_back(parse_body({"else", "endfor"}));
    --loops_;
    stmt->blocks.push_back(skip_name("else") ? parse_body({"endfor"}) : Block());
    --frame_;
    advance();
    return stmt;
  }

  StmtPtr parse_set() {
    StmtPtr stmt = make_stmt(StmtKind::kSet);
    advance();
    stmt->target = parse_target({}, true);
    if (skip_operator("=")) {
      stmt->exprs.push_back(parse_tuple());
      return stmt;
    }
    stmt->kind = StmtKind::kSetBlock;
    ++frame_;
    stmt->exprs.push_back(sees_operator("|") ? parse_filters(nullptr, false) : nullptr);
    --frame_;
    stmt->blocks.push_back(parse_framed_body("endset"));
    return stmt;
  }

  void parse_parameters(Stmt& stmt) {
    expect_operator("(");
    while (ok() && !sees_operator(")")) {
      if (!stmt.parameters.empty()) expect_operator(",");
      Parameter parameter;
      parameter.target = parse_target_name(false);
      if (skip_operator("=")) {
        parameter.fallback = parse_expression();
      } else if (!stmt.parameters.empty() && stmt.parameters.back().fallback != nullptr) {
        fail_here("a parameter without a default follows one with a default");
      }
      stmt.parameters.push_back(std::move(parameter));
    }
    expect_operator(")");
  }

  /// The body of a macro. A loop around the macro is not the macro's own.
  void parse_macro_body(Stmt& stmt, std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    const size_t begin = token_index();
    stmt.blocks.push_back(parse_framed_body(end));
    loops_ = loops;
    stmt.uses_varargs = names_since(begin, "varargs");
    stmt.uses_kwargs = names_since(begin, "kwargs");
    stmt.uses_caller = names_since(begin, "caller");
  }

  StmtPtr parse_macro() {
    StmtPtr stmt = make_stmt(StmtKind::kMacro);
    advance();
    stmt->target = parse_target_name(false);
    ++frame_;
    parse_parameters(*stmt);
    --frame_;
    parse_macro_body(*stmt, "endmacro");
    return stmt;
  }

  StmtPtr parse_call_block() {
    StmtPtr stmt = make_stmt(StmtKind::kCallBlock);
    advance();
    if (sees_operator("(")) parse_parameters(*stmt);
    stmt->exprs.push_back(parse_expression());
    if (stmt->exprs[0]->kind != ExprKind::kCall) fail("'call' needs a call", stmt->at);
    parse_macro_body(*stmt, "endcall");
    return stmt;
  }

  StmtPtr parse_filter_block() {
    StmtPtr stmt = make_stmt(StmtKind::kFilterBlock);
    advance();
    ++frame_;
    stmt->exprs.push_back(parse_filters(nullptr, true));
    --frame_;
    stmt->blocks.push_back(parse_framed_body("endfilter"));
    return stmt;
  }

  StmtPtr parse_with() {
    StmtPtr stmt = make_stmt(StmtKind::kWith);
    advance();
    while (ok() && current().kind != TokenKind::kBlockEnd) {
      if (!stmt->parameters.empty()) expect_operator(",");
      Parameter parameter;
      parameter.target = parse_target({}, false);
      expect_operator("=");
      parameter.fallback = parse_expression();
      stmt->parameters.push_back(std::move(parameter));
    }
    stmt->blocks.push_back(parse_framed_body("endwith"));
    return stmt;
  }

  StmtPtr parse_generation() {
    StmtPtr stmt = make_stmt(StmtKind::kGeneration);
    advance();
    parse_macro_body(*stmt, "endgeneration");
    return stmt;
  }

  StmtPtr parse_jump() {
    StmtPtr stmt = make_stmt(sees_name("break") ? StmtKind::kBreak : StmtKind::kContinue);
    if (loops_ == 0) fail_here(cat("'", current().text, "' is outside a loop"));
    advance();
    return stmt;
  }

  ExprPtr parse_target(std::string_view end, bool with_namespace);
  ExprPtr parse_target_name(bool with_namespace);

  int loops_ = 0;
};

ExprPtr Parser::parse_target_name(bool with_namespace) {
  static constexpr std::string_view kConstants[] = {"true",  "True", "false",
                                                    "False", "none", "None"};
  ExprPtr name = make(ExprKind::kName, current().at);
  name->text = take_name();
  name->name = intern(name->text);
  if (with_namespace && skip_operator(".")) {
    ExprPtr attribute = make(ExprKind::kAttribute, name->at);
    attribute->text = take_name();
    adopt(*attribute, std::move(name));
    return attribute;
  }
  if (std::find(std::begin(kConstants), std::end(kConstants), name->text) != std::end(kConstants))
    fail(cat("cannot assign to '", name->text, "'"), name->at);
  if (loops_ > 0 && name->text == "loop") fail("cannot assign to 'loop' in a loop", name->at);
  return name;
}

ExprPtr Parser::parse_target(std::string_view end, bool with_namespace) {
  ExprPtr tuple = make(ExprKind::kTuple, current().at);
  bool has_comma = false;
  while (ok() && !ends_tuple(end) && !sees_operator("=")) {
    if (skip_operator("(")) {
      const Nesting nesting(*this);
      adopt(*tuple, parse_target({}, with_namespace));
      expect_operator(")");
    } else {
      adopt(*tuple, parse_target_name(with_namespace));
    }
    if (!skip_operator(",")) break;
    has_comma = true;
  }
  if (!has_comma && !tuple->children.empty()) return std::move(tuple->children[0]);
  if (tuple->children.empty())
    fail_here(cat("expected a name to assign to, got ", described(current())));
  return tuple;
}

}  // namespace

Result<std::shared_ptr<const SyntaxTree>, SyntaxError> parse(std::string_view source) {
  auto tree = std::make_shared<SyntaxTree>();
  tree->source = normalized_source(source);
  auto tokens = tokenize(tree->source);
  if (!tokens.ok()) return tokens.error();
  Parser parser(std::move(tokens).value(), tree->names);
  tree->body = parser.parse_template();
  if (!parser.error().ok()) return parser.error();
  return std::shared_ptr<const SyntaxTree>(std::move(tree));
}

}  // namespace shoal::jinja
