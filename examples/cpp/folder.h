// The folder of a bundle, held open: what is verified is what is opened. Names are looked up once, relative
// to the descriptor; links and names with folders are refused; a library is loaded from a private copy
// in memory that nobody can write. (The copy costs the file's size; `collage.runtime.bundle_folder` makes one
// only where others may write to the file.)
#ifndef SERVE_BUNDLE_FOLDER_H_
#define SERVE_BUNDLE_FOLDER_H_

#include <string>
#include <vector>

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : number_(other.number_) { other.number_ = -1; }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return number_; }

 private:
  int number_;
};

class Folder {
 public:
  // Throws std::runtime_error, like everything here.
  explicit Folder(const std::string& path);

  std::vector<std::string> Names() const;
  std::string Read(const std::string& name, std::size_t limit) const;

  // A private copy of the file, which has this SHA-256 in hex.
  Descriptor OpenVerified(const std::string& name, const std::string& digest) const;

 private:
  Descriptor Open(const std::string& name) const;

  std::string path_;
  Descriptor folder_;
};

// Letters, digits, and . _ - in the middle: no folder, no hidden file.
bool IsFileName(const std::string& name);

#endif  // SERVE_BUNDLE_FOLDER_H_
