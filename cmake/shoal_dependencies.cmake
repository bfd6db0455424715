# Every package that the build uses. docs/decisions/dependencies.md gives the reason for each. All
# are in Debian 12.
find_package(Threads REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
if(SHOAL_ONLY_TOOLS)
  return()
endif()
find_package(CLI11 CONFIG REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(ZLIB REQUIRED)
# Only headers of Boost are used, and they are the same on every machine.
find_path(SHOAL_BOOST_INCLUDE boost/beast/http.hpp REQUIRED)
add_library(boost_headers INTERFACE)
target_include_directories(boost_headers SYSTEM INTERFACE ${SHOAL_BOOST_INCLUDE})
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
# The package's own CMake files ask for the libraries of its web server and its push client too, and
# its development files cannot be installed for two architectures at once. Only the core is used.
find_path(PROMETHEUS_CPP_INCLUDE prometheus/text_serializer.h REQUIRED)
find_library(PROMETHEUS_CPP_CORE NAMES prometheus-cpp-core libprometheus-cpp-core.so.1.0 REQUIRED)
add_library(prometheus-cpp::core UNKNOWN IMPORTED)
set_target_properties(prometheus-cpp::core PROPERTIES
                      IMPORTED_LOCATION ${PROMETHEUS_CPP_CORE}
                      INTERFACE_INCLUDE_DIRECTORIES ${PROMETHEUS_CPP_INCLUDE})
# Its development files cannot be installed for two architectures at once either.
find_path(YAML_CPP_INCLUDE yaml-cpp/yaml.h REQUIRED)
find_library(YAML_CPP_LIBRARY NAMES yaml-cpp libyaml-cpp.so.0.7 REQUIRED)
add_library(shoal_yaml_cpp UNKNOWN IMPORTED)
set_target_properties(shoal_yaml_cpp PROPERTIES IMPORTED_LOCATION ${YAML_CPP_LIBRARY}
                                                INTERFACE_INCLUDE_DIRECTORIES ${YAML_CPP_INCLUDE})
if(SHOAL_TESTS)
  find_package(GTest CONFIG REQUIRED)
endif()
