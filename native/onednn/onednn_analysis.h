// Analysis of a program's values, before the choice of layouts.
#ifndef COLLAGE_ONEDNN_ANALYSIS_H_
#define COLLAGE_ONEDNN_ANALYSIS_H_

#include <vector>

#include "onednn/onednn_program.h"

namespace collage::onednn {

struct Analysis {
  // Per value: the preferred layout of its only reader, or null. Outputs are plain. A value with a view as its only
  // reader gets the layout for which the view is plain, or in its own reader's preferred layout.
  std::vector<Desc> preferred_layouts;
  // Per value: the argument of the kernel that may hold it if it has the preferred layout, or -1.
  std::vector<int> targets;
  // Per value: the value with its bytes; the root of a view is the root of its source.
  std::vector<int> roots;
  // Per root: its last reader; outputs are read after the last step.
  std::vector<int> last_reads;
};

Analysis Analyse(const Program& program);

}  // namespace collage::onednn

#endif  // COLLAGE_ONEDNN_ANALYSIS_H_
