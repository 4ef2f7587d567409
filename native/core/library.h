// Vendor libraries, opened at run time: the plug-in links none of them.
//
// A library's path comes from collage.set_library(name, path) or the environment variable
// COLLAGE_LIB_<NAME>. A library is opened once and never closed.
//
// What is trusted: the process's own code and environment. A path without a slash is looked for as the
// loader does (LD_LIBRARY_PATH), and COLLAGE_LIB_<NAME> may point anywhere, for both belong to whoever
// starts the process and could preload anything. A bundle is not trusted with it: its blobs name
// libraries that the process told of, never files, and options of a framework that name files or folders
// are refused (RefusePaths).
#ifndef COLLAGE_LIBRARY_H_
#define COLLAGE_LIBRARY_H_

#include <string>
#include <utility>
#include <vector>

namespace collage {

void SetLibrary(const std::string& name, const std::string& path);

// Throws a ffi ValueError where a key of a framework's options, `what` of a blob, is about a file, folder or
// library: such options make a framework open what the blob names.
void RefusePaths(const std::vector<std::pair<std::string, std::string>>& options, const char* what);

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
