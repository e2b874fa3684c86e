// The drafters of one text and their merged tree.
#pragma once
#include "spec_merge.h"

struct ed_drafter {
  std::unique_ptr<edgedec::TableDrafter> drafter;
};

struct ed_drafting {
  std::vector<ed_drafter*> drafters;
  edgedec::DraftText text;
  edgedec::DraftTree draft;
  edgedec::TreeMerger merger;
  int64_t watched = -1;  // the text's length when `merger`'s tree was made by a watch; -1: it was not
  std::vector<int64_t> came;
  std::vector<int32_t> path;
};

namespace edgedec {

// Merges the trees of the drafters that are enabled; `asked.more` is read already.
void merge_drafts(ed_drafting& drafting, const ed_proposal& asked);
// Scores the tree of the last watch against the new tokens of the text.
void test_watched(ed_drafting& drafting, const ed_calibration* calibrations);
// Lets the drafters learn from a verified call.
void observe_drafts(ed_drafting& drafting, const ed_verified& seen, uint32_t enabled, double* seconds);

}  // namespace edgedec
