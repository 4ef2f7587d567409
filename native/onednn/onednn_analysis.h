// What is known about a program's values before any layout is chosen.
#ifndef COLLAGE_ONEDNN_ANALYSIS_H_
#define COLLAGE_ONEDNN_ANALYSIS_H_

#include <vector>

#include "onednn/onednn_program.h"

namespace collage::onednn {

struct Analysis {
  // Per value: the layout that its only reader likes best, or null. Outputs are plain. What one
  // view alone reads should lie so that the view is plain, or lies as its own reader wishes.
  std::vector<Desc> wishes;
  // Per value: the argument of the kernel that it may be written to straight away when it lies as
  // wished, or -1.
  std::vector<int> targets;
  // Per value: the value whose bytes it shows; a view has the root of what it views.
  std::vector<int> roots;
  // Per root: the last step that reads it; outputs are read after the last step.
  std::vector<int> last_reads;
};

Analysis Analyse(const Program& program);

}  // namespace collage::onednn

#endif  // COLLAGE_ONEDNN_ANALYSIS_H_
