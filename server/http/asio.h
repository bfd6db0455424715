#pragma once
// Boost 1.74 uses std::exchange without including what declares it, so <utility> comes first.
#include <utility>
// One thread runs all handlers, and what other threads post to it passes a mutex. So the fences
// around handlers are not needed, and ThreadSanitizer, which does not know fences, sees all that
// there is.
#define BOOST_ASIO_DISABLE_FENCED_BLOCK 1
#include <boost/asio.hpp>
