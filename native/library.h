// Vendor libraries, opened at run time: the plug-in links none of them.
//
// A library's path comes from collage.set_library(name, path) or the environment variable
// COLLAGE_LIB_<NAME>. A library is opened once and never closed.
#ifndef COLLAGE_LIBRARY_H_
#define COLLAGE_LIBRARY_H_

#include <string>

namespace collage {

void SetLibrary(const std::string& name, const std::string& path);

// Whether the path of library `name` is known.
bool HasLibrary(const std::string& name);

// Opens library `name`. Throws a ffi RuntimeError that names the package to install when its path
// is not known or cannot be opened. A `global` library offers its symbols to those opened later.
void* OpenLibrary(const std::string& name, bool global = false);

// The address of `symbol`, or a ffi RuntimeError that names library and symbol.
void* FindSymbol(void* library, const std::string& library_name, const char* symbol);

template <typename T>
T FindSymbolAs(void* library, const std::string& library_name, const char* symbol) {
  return reinterpret_cast<T>(FindSymbol(library, library_name, symbol));
}

}  // namespace collage

#endif  // COLLAGE_LIBRARY_H_
