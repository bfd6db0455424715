#include "server/commands/fronts.h"

#include <algorithm>
#include <unistd.h>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/terminal.h"
#include "server/cli/ready_file.h"
#include "server/facades/facades.h"
#include "server/grpc/grpc_version.h"
#include "server/net/peer.h"

namespace shoal {

namespace {

/// Descriptors of the process besides connections: models' files, listeners, gRPC's own.
constexpr int64_t kOwnDescriptors = 64;
constexpr int64_t kDescriptorsPerRank = 4;
constexpr int64_t kFewestConnections = 8;
constexpr int kProbeConnections = 16;  // on the health port

bool is_loopback(const std::string& host) {
  return is_loopback_name(
      host_without_port(host.find(':') == std::string::npos ? host : "[" + host + "]"));
}

/// At most half of the descriptors that are left, because the other half is for gRPC.
int connection_limit(const HttpFlags& flags, int64_t descriptors, int ranks) {
  const int64_t left = descriptors - kOwnDescriptors - kDescriptorsPerRank * ranks;
  return static_cast<int>(
      std::clamp<int64_t>(left / 2, std::min<int64_t>(kFewestConnections, flags.max_connections),
                          flags.max_connections));
}

int milliseconds(double seconds) {
  return static_cast<int>(std::min(seconds * 1e3, double{INT32_MAX}));
}

/// What a client chose freely, its id or an unknown path, as it may stand in the log: a short piece
/// of printable ASCII.
std::string shown_piece(std::string text) {
  constexpr size_t kMost = 128;
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  for (char& c : text)
    if (c < 0x20 || c > 0x7E) c = '_';
  return text;
}

/// A method as it was sent. Clients may make up any, so that only a name that looks like a method
/// stands in the log.
LogValue shown_method(const std::string& method) {
  constexpr size_t kMost = 16;
  const bool named = !method.empty() && method.size() <= kMost &&
                     std::all_of(method.begin(), method.end(),
                                 [](char letter) { return letter >= 'A' && letter <= 'Z'; });
  return named ? LogValue(method) : LogValue();
}

/// One line for each request, without any of its text except an unknown path. Probes come every few
/// seconds, so that they are only for those who look for them.
void log_call(const CallRecord& call) {
  const CallSummary& summary = call.summary;
  const bool probe = call.route == HttpRoute::kHealth || call.route == HttpRoute::kLive ||
                     call.route == HttpRoute::kMetrics;
  const std::string id = shown_piece(summary.request_id), path = shown_piece(call.path);
  log_line(
      probe ? LogLevel::kDebug : LogLevel::kInfo,
      cat("http ", route_name(call.route), path.empty() ? "" : cat(" path ", path), ": status ",
          call.status == 0 ? "none, the client left" : cat(call.status), ", ",
          summary.prompt_tokens, " + ", summary.output_tokens, " tokens, ", call.bytes, " bytes, ",
          milliseconds(call.seconds), " ms", id.empty() ? "" : cat(", request ", id)),
      {{"event", "http_request"},
       {"method", shown_method(call.method)},
       {"route", route_name(call.route)},
       {"path", path.empty() ? LogValue() : path},
       {"status", call.status == 0 ? LogValue() : call.status},
       {"request_id", id.empty() ? LogValue() : id},
       {"finish", summary.finish ? LogValue(end_name(*summary.finish)) : LogValue()},
       {"prompt_tokens", summary.prompt_tokens},
       {"completion_tokens", summary.output_tokens},
       {"queue_ms", milliseconds_of(summary.queue_s)},
       {"first_token_ms", milliseconds_of(summary.first_token_s)},
       {"took_ms", milliseconds_of(call.seconds)},
       {"answer_bytes", static_cast<int64_t>(call.bytes)}});
}

HttpServerOptions http_options(const ServeFlags& flags, std::shared_ptr<const HttpParts> parts,
                               const SecretFiles& secrets, Metrics& metrics, int max_connections) {
  HttpServerOptions options;
  options.host = flags.host;
  options.port = *flags.http.port;
  options.unix_socket = flags.http.uds;
  options.tls = secrets.tls();
  options.max_connections = max_connections;
  options.limits.header_bytes = flags.http.max_header_bytes;
  options.limits.header_ms = milliseconds(flags.http.header_timeout_s);
  options.limits.body_ms = milliseconds(flags.http.body_timeout_s);
  options.routing = {
      .parts = std::move(parts),
      .access = {.allowed_origins = flags.http.allowed_origins,
                 .allowed_hosts = flags.http.allowed_hosts,
                 .bound_to_loopback = flags.http.uds.empty() && is_loopback(flags.host)},
      .keys = secrets.keys(),
      .metrics_without_key = flags.access.metrics_without_key};
  options.done = [&metrics](const CallRecord& call) {
    metrics.count_http(route_name(call.route), call.status);
    log_call(call);
  };
  return options;
}

/// A port for whoever brings neither a key nor a certificate, such as a kubelet.
HttpServerOptions health_options(const ServeFlags& flags, std::shared_ptr<const HttpParts> parts,
                                 const SecretFiles& secrets, Metrics& metrics) {
  HttpServerOptions options =
      http_options(flags, std::move(parts), secrets, metrics, kProbeConnections);
  options.port = *flags.health_port;
  options.port_flag = "--health-port";
  options.unix_socket.clear();
  options.tls = nullptr;
  options.routing.access.bound_to_loopback = is_loopback(flags.host);
  options.routing.metrics_without_key = true;
  options.routing.probes_only = true;
  return options;
}

void warn_if_open(const ServeFlags& flags, const ApiKeys& keys) {
  if (keys.any() || flags.tls.any() || is_loopback(flags.host)) return;
  log_warning(cat("anyone who reaches ", flags.host,
                  " may use this server and read what others send: it listens beyond loopback with "
                  "neither a key (--api-key-file) nor TLS (--ssl-certfile)"),
              {{"event", "open_to_all"}, {"host", flags.host}});
}

}  // namespace

std::vector<std::string> served_names(const ServeFlags& flags, const std::string& model) {
  return flags.served_model_names.empty() ? std::vector{model} : flags.served_model_names;
}

void warn_if_closed(const ServeFlags& flags, const std::string& container) {
  // A Unix socket may lie in a volume, and is a way in that was chosen.
  if (container.empty() || !flags.http.uds.empty() || !is_loopback(flags.host)) return;
  log_warning(cat("only processes in this container's network can reach ", flags.host,
                  "; --host 0.0.0.0 lets others in"),
              {{"event", "loopback_only"}, {"host", flags.host}});
}

Result<std::unique_ptr<Fronts>> Fronts::start(const ServeFlags& flags,
                                              const std::string& served_name, int ranks,
                                              Metrics& metrics) {
  std::unique_ptr<Fronts> fronts(new Fronts);
  SHOAL_ASSIGN_OR_RETURN(fronts->secrets_, SecretFiles::open(flags.access, flags.tls));
  Intake::Options intake_options;
  intake_options.budget_bytes = flags.request_memory;
  const auto state =
      std::make_shared<ServingState>(served_names(flags, served_name), metrics.book());
  fronts->intake_ = std::make_shared<Intake>(intake_options, state);
  const int64_t descriptors = raise_descriptor_limit();
  GrpcServerOptions grpc;
  grpc.host = flags.host;
  grpc.port = flags.grpc_port;
  grpc.ranks = ranks;
  grpc.state = state;
  grpc.intake = fronts->intake_;
  grpc.keys = fronts->secrets_->keys();
  grpc.tls = fronts->secrets_->tls();
  grpc.facades = all_facades();
  SHOAL_ASSIGN_OR_RETURN(fronts->grpc_, GrpcServer::start(grpc));
  HttpParts parts;
  parts.state = state;
  parts.intake = fronts->intake_;
  parts.version = SHOAL_VERSION;
  parts.metrics = [&metrics] { return metrics.text(); };
  parts.max_body_bytes = flags.http.max_body_bytes;
  parts.keep_alive_ms = milliseconds(flags.http.keep_alive_s);
  SHOAL_RETURN_IF_ERROR(fronts->start_http(flags, std::move(parts), metrics,
                                           connection_limit(flags.http, descriptors, ranks)));
  warn_if_open(flags, *fronts->secrets_->keys());
  if (!is_loopback(flags.host)) warn_of_endless_headers(flags.host);
  return fronts;
}

Status Fronts::start_http(const ServeFlags& flags, HttpParts parts, Metrics& metrics,
                          int max_connections) {
  parts.front_alive = [grpc = grpc_.get()] { return grpc->alive(); };
  if (*flags.http.port >= 0) {
    SHOAL_ASSIGN_OR_RETURN(
        http_, HttpServer::start(http_options(flags, std::make_shared<HttpParts>(parts), *secrets_,
                                              metrics, max_connections)));
  }
  if (!flags.health_port) return {};
  // The health port has a thread of its own. So its answer does not show that the other ports work,
  // and it asks both of them.
  parts.front_alive = [grpc = grpc_.get(), http = http_.get()] {
    return grpc->alive() && (http == nullptr || http->alive());
  };
  SHOAL_ASSIGN_OR_RETURN(
      health_, HttpServer::start(health_options(
                   flags, std::make_shared<HttpParts>(std::move(parts)), *secrets_, metrics)));
  return {};
}

std::string Fronts::addresses() const {
  return cat("grpc=", grpc_->address(), http_ ? cat(" http=", ready_value(http_->address())) : "",
             health_ ? cat(" health=", health_->address()) : "", secrets_->tls() ? " tls=1" : "");
}

void Fronts::say_how_to_ask(const HttpFlags& flags) const {
  if (!is_terminal(STDERR_FILENO) || secrets_->tls() || secrets_->keys()->any()) return;
  const bool on_a_port = http_ && flags.uds.empty();
  log_info(cat("try: ", on_a_port ? cat("curl http://", http_->address(), "/v1/models, or ") : "",
               "shoal client --server ", grpc_->address(), " --prompt \"Hello\""));
}

void Fronts::set_ready(const ServedModel* model, InferenceLoop* loop,
                       const DeploymentInfo& deployment) {
  grpc_->set_ready(model, loop, deployment);
}

void Fronts::shutdown(Deadline deadline) {
  grpc_->set_draining();
  if (http_) http_->stop_accepting();
  (void)intake_->wait_until_empty(deadline);
  // HTTP first, because the threads of the intake, which both use, end with gRPC's server.
  if (http_) http_->shutdown(deadline);
  grpc_->shutdown(deadline);
  if (health_) health_->shutdown(Deadline::after_ms(0));
}

}  // namespace shoal
