// Vendor libraries, opened at run time: the plug-in links none of them.
//
// A library's path comes from collage.set_library(name, path) or the environment variable
// COLLAGE_LIB_<NAME>. A library is opened once and never closed.
//
// Trust: the process's own code and environment. A path without a slash is searched like the loader does
// (LD_LIBRARY_PATH), and COLLAGE_LIB_<NAME> may be any path: both are under the control of the process's owner, who
// could preload any code. Bundles are not trusted: their blobs refer to registered library names, never to files, and
// options of a framework with paths are refused (RefusePaths).
#ifndef COLLAGE_LIBRARY_H_
#define COLLAGE_LIBRARY_H_

#include <string>
#include <utility>
#include <vector>

namespace collage {

void SetLibrary(const std::string& name, const std::string& path);

// Throws a ffi ValueError for an option of a framework (entry `what` of a blob) about a file, folder or library: with
// such options a framework opens paths from the blob.
void RefusePaths(const std::vector<std::pair<std::string, std::string>>& options, const char* what);

// Whether the path of library `name` is known.
bool HasLibrary(const std::string& name);

// Opens library `name`. Throws a ffi RuntimeError with the package to install if its path is unknown or cannot be
// opened. Symbols of a `global` library are visible to libraries opened later.
void* OpenLibrary(const std::string& name, bool global = false);

// The address of `symbol`, or a ffi RuntimeError with library and symbol.
void* FindSymbol(void* library, const std::string& library_name, const char* symbol);

template <typename T>
T FindSymbolAs(void* library, const std::string& library_name, const char* symbol) {
  return reinterpret_cast<T>(FindSymbol(library, library_name, symbol));
}

}  // namespace collage

#endif  // COLLAGE_LIBRARY_H_
