// The recurrence of a call: each head of each sequence, or a few lane groups of one, through all rows of its sequence.
#pragma once
#include "engine.h"
#include "recurrent.h"

namespace edgedec {

class StateScan {
 public:
  // Runs part(sequence, its updates, head, first lane group, end, thread) for all of a state of `heads` heads of
  // `head_dim` values; then the states have the rows.
  template <class Part>
  void run(Engine& engine, const BlockCall& call, int heads, int head_dim, Part part) {
    const int n = (int)call.sequences.size(), lanes = ssm_lane_groups(head_dim);
    const int parts = (lanes + LANE_GROUPS - 1) / LANE_GROUPS, each = heads * parts;
    if ((int)updates_.size() < n) updates_.resize(n);
    for (int i = 0; i < n; i++) state(call.sequences[i]).updates(updates_[i]);
    engine.pool().parallel_for(n * each, engine.grain(n * each), [&](int begin, int end, int thread) {
      for (int i = begin; i < end; i++) {
        const int at = i % parts;
        part(call.sequences[i / each], updates_[i / each], i % each / parts, lanes * at / parts, lanes * (at + 1) / parts,
             thread);
      }
    });
    for (const SequenceRows& s : call.sequences) state(s).applied();
  }

 private:
  static constexpr int LANE_GROUPS = 4;  // of one task, at most: the part of a head's state that fits in the fastest cache

  static RecurrentState& state(const SequenceRows& s) { return *static_cast<RecurrentState*>(s.state); }

  std::vector<std::vector<SsmUpdate>> updates_;  // of each sequence
};

}  // namespace edgedec
