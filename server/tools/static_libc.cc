// These stand in for functions of the C library that would load shared libraries at run time. A
// static program may meet another C library there, or none at all.
#include <cstdio>
#include <pwd.h>
#include <sys/types.h>

extern "C" {

// The linker puts these in the place of dlopen, dlsym and dlerror (CMakeLists.txt, --wrap).

void* no_dlopen(const char*, int) __asm__("__wrap_dlopen");
void* no_dlsym(void*, const char*) __asm__("__wrap_dlsym");
char* why_no_dlopen() __asm__("__wrap_dlerror");

void* no_dlopen(const char*, int) {
  return nullptr;
}

void* no_dlsym(void*, const char*) {
  return nullptr;
}

char* why_no_dlopen() {
  static char why[] = "this program is linked statically, so it loads no libraries";
  return why;
}

/// Knows the users of /etc/passwd alone. The result is valid until the next call, as with the
/// original.
passwd* getpwuid(uid_t user) {
  FILE* file = std::fopen("/etc/passwd", "re");
  if (file == nullptr) return nullptr;
  passwd* entry = ::fgetpwent(file);
  while (entry != nullptr && entry->pw_uid != user) entry = ::fgetpwent(file);
  (void)std::fclose(file);
  return entry;
}

}  // extern "C"
