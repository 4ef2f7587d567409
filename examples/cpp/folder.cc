#include "folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "sha256.h"

namespace {

[[noreturn]] void Fail(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

std::size_t ReadSome(int descriptor, char* to, std::size_t size, const std::string& what) {
  for (;;) {
    ssize_t found = read(descriptor, to, size);
    if (found >= 0) return static_cast<std::size_t>(found);
    if (errno != EINTR) Fail("cannot read " + what);
  }
}

void WriteAll(int descriptor, const char* from, std::size_t size) {
  while (size > 0) {
    ssize_t written = write(descriptor, from, size);
    if (written < 0 && errno != EINTR) Fail("cannot copy a file into memory");
    if (written > 0) from += written, size -= static_cast<std::size_t>(written);
  }
}

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) close(number_);
}

Folder::Folder(const std::string& path)
    : path_(path), folder_(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (folder_.get() < 0) Fail("cannot open the bundle " + path);
}

std::vector<std::string> Folder::Names() const {
  int copy = openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* stream = copy < 0 ? nullptr : fdopendir(copy);
  if (stream == nullptr) Fail("cannot list " + path_);
  std::vector<std::string> names;
  while (dirent* entry = readdir(stream)) names.emplace_back(entry->d_name);
  closedir(stream);
  std::sort(names.begin(), names.end());
  return names;
}

std::string Folder::Read(const std::string& name, std::size_t limit) const {
  Descriptor file = Open(name);
  std::string content;
  char chunk[1 << 16];
  while (std::size_t found = ReadSome(file.get(), chunk, sizeof(chunk), path_ + "/" + name)) {
    content.append(chunk, found);
    if (content.size() > limit) {
      throw std::runtime_error(path_ + "/" + name + " has more than " + std::to_string(limit) +
                               " bytes");
    }
  }
  return content;
}

Descriptor Folder::OpenVerified(const std::string& name, const std::string& digest) const {
  Descriptor file = Open(name);
  Descriptor copy(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (copy.get() < 0) Fail("cannot copy " + name + " into memory");
  Sha256 hash;
  char chunk[1 << 16];
  while (std::size_t found = ReadSome(file.get(), chunk, sizeof(chunk), path_ + "/" + name)) {
    hash.Update({chunk, found});
    WriteAll(copy.get(), chunk, found);
  }
  std::string found = hash.Hex();
  if (found != digest) {
    throw std::runtime_error(path_ + "/" + name + " was changed after the bundle was made (sha256 " +
                             found.substr(0, 12) + ", expected " + digest.substr(0, 12) + ")");
  }
  if (fcntl(copy.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    Fail("cannot protect the copy of " + name);
  }
  return copy;
}

Descriptor Folder::Open(const std::string& name) const {
  if (!IsFileName(name)) throw std::runtime_error("'" + name + "' is no name of a bundle's file");
  constexpr int kFlags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  Descriptor file(openat(folder_.get(), name.c_str(), kFlags));
  if (file.get() < 0) Fail("cannot open " + path_ + "/" + name);
  struct stat found;
  if (fstat(file.get(), &found) != 0 || !S_ISREG(found.st_mode)) {
    throw std::runtime_error(path_ + "/" + name + " is no regular file");
  }
  return file;
}

bool IsFileName(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return c < 128 && (std::isalnum(c) || c == '.' || c == '_' || c == '-');
         });
}
