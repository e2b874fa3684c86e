// Drafting behind the C interface: drafters, and the merged tree of one text.
#include <chrono>

#include "spec_drafting.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

// 0, or why `work` could not be done.
template <class Work>
int guarded(Work work) {
  try {
    return work();
  } catch (...) {
    return ED_DRAFT_MEMORY;
  }
}

std::unique_ptr<edgedec::TableDrafter> make(const ed_drafter_options& o) {
  const bool table = o.vocab > 0 && o.nodes > 0 && o.k > 0 && o.k <= o.vocab;
  switch (o.kind) {
    case 0:
      return o.ngram > 0 && o.ngram <= 8 && o.length > 0 ? edgedec::make_copy(o) : nullptr;
    case 1:
      return edgedec::make_suffix(o);
    case 2:
      return table ? edgedec::make_recycling(o) : nullptr;
    case 3:
      return table ? edgedec::make_trigram(o) : nullptr;
    case 4:
      return table ? edgedec::make_stand(o) : nullptr;
    case 5:
      return edgedec::make_datastore(o);
  }
  return nullptr;
}

void read(ed_drafting& drafting, const ed_proposal& asked) {
  drafting.text.ids.insert(drafting.text.ids.end(), asked.more, asked.more + asked.n_more);
  drafting.text.prompt = asked.prompt;
}

int fill_order(ed_drafting& drafting, bool chain, ed_draft_tree& tree) {
  const std::vector<int32_t>& order = drafting.merger.order(chain);
  drafting.merger.fill(tree);
  int n = 0;
  for (const int32_t node : order)
    if (node < tree.n) tree.order[n++] = node;
  return n;
}

}  // namespace

namespace edgedec {

void merge_drafts(ed_drafting& drafting, const ed_proposal& asked) {
  DraftTree& draft = drafting.draft;
  drafting.merger.clear(), drafting.watched = -1;
  for (size_t i = 0; i < drafting.drafters.size(); i++) {
    if (!drafting.drafters[i] || !(asked.enabled >> i & 1)) continue;
    const auto began = Clock::now();
    draft.clear();
    drafting.drafters[i]->drafter->propose(drafting.text, asked.nodes, asked.least, draft);
    drafting.merger.add((int)i, draft.size(), draft.tokens.data(), draft.parents.data(), draft.claims.data(),
                        asked.estimates[i].estimates, nullptr);
    asked.seconds[i] = seconds_since(began);
  }
}

void test_watched(ed_drafting& drafting, const ed_calibration* calibrations) {
  const std::vector<int32_t>& ids = drafting.text.ids;
  if (drafting.watched < 0 || drafting.watched >= (int64_t)ids.size()) return;
  drafting.came.assign(ids.begin() + drafting.watched, ids.end());
  drafting.path.resize(drafting.came.size());
  drafting.merger.test(drafting.came.data(), (int)drafting.came.size(), calibrations, drafting.path.data());
}

void observe_drafts(ed_drafting& drafting, const ed_verified& seen, uint32_t enabled, double* seconds) {
  for (size_t i = 0; i < drafting.drafters.size(); i++) {
    if (!drafting.drafters[i] || !(enabled >> i & 1)) continue;
    const auto began = Clock::now();
    drafting.drafters[i]->drafter->observe(seen);
    seconds[i] = seconds_since(began);
  }
}

}  // namespace edgedec

ed_drafter* ed_drafter_new(const ed_drafter_options* options) {
  try {
    auto made = make(*options);
    return made ? new ed_drafter{std::move(made)} : nullptr;
  } catch (...) {
    return nullptr;
  }
}

void ed_drafter_free(ed_drafter* drafter) { delete drafter; }

ed_drafter* ed_drafter_fork(const ed_drafter* drafter) {
  try {
    return new ed_drafter{drafter->drafter->fork()};
  } catch (...) {
    return nullptr;
  }
}

int ed_drafter_share(ed_drafter* drafter, ed_drafter* owner) {
  return drafter->drafter->share(*owner->drafter) ? 0 : ED_DRAFT_REFUSED;
}

int64_t ed_drafter_figure(const ed_drafter* drafter, int what) { return drafter->drafter->figure(what); }

int ed_drafter_save(const ed_drafter* drafter, int part, int64_t* keys, int32_t* ids, float* p, int32_t* visits) {
  return guarded([&] { return drafter->drafter->save(part, keys, ids, p, visits); });
}

int ed_drafter_load(ed_drafter* drafter, int part, int n, const int64_t* keys, const int32_t* ids, const float* p,
                    const int32_t* visits) {
  return guarded([&] { return drafter->drafter->load(part, n, keys, ids, p, visits); });
}

int ed_drafter_index(ed_drafter* drafter, const int32_t* tokens, const int32_t* order, int64_t n) {
  return guarded([&] { return drafter->drafter->index(tokens, order, n) ? 0 : ED_DRAFT_REFUSED; });
}

ed_drafting* ed_drafting_new(ed_drafter* const* drafters, int n) {
  try {
    return n < 0 || n > 31 ? nullptr : new ed_drafting{{drafters, drafters + n}, {}, {}, {}, -1, {}, {}};
  } catch (...) {
    return nullptr;
  }
}

void ed_drafting_free(ed_drafting* drafting) { delete drafting; }

void ed_drafting_reset(ed_drafting* drafting) {
  drafting->text.ids.clear(), drafting->merger.clear(), drafting->watched = -1;
  for (ed_drafter* each : drafting->drafters)
    if (each) each->drafter->reset();
}

int ed_drafting_read(const ed_drafting* drafting) { return (int)drafting->text.ids.size(); }

int ed_drafting_propose(ed_drafting* drafting, const ed_proposal* asked, ed_draft_tree* tree) {
  return guarded([&] {
    read(*drafting, *asked);
    edgedec::merge_drafts(*drafting, *asked);
    fill_order(*drafting, false, *tree);
    return 0;
  });
}

int ed_drafting_watch(ed_drafting* drafting, const ed_proposal* asked, ed_watch* watch) {
  return guarded([&] {
    read(*drafting, *asked);
    edgedec::test_watched(*drafting, asked->estimates);
    edgedec::merge_drafts(*drafting, *asked);
    drafting->merger.order(false);
    drafting->watched = (int64_t)drafting->text.ids.size();
    watch->nodes = drafting->merger.paying(*watch);
    return 0;
  });
}

int ed_drafting_propose_one(ed_drafting* drafting, int number, const ed_proposal* asked, ed_draft_tree* tree) {
  return guarded([&] {
    read(*drafting, *asked);
    edgedec::DraftTree& draft = drafting->draft;
    draft.clear();
    drafting->drafters[(size_t)number]->drafter->propose(drafting->text, asked->nodes, asked->least, draft);
    tree->n = std::min((int32_t)draft.size(), tree->room);
    for (int i = 0; i < tree->n; i++)
      tree->tokens[i] = draft.tokens[(size_t)i], tree->parents[i] = draft.parents[(size_t)i],
      tree->p[i] = draft.claims[(size_t)i];
    return 0;
  });
}

int ed_drafting_observe(ed_drafting* drafting, const ed_verified* seen, uint32_t enabled, double* seconds) {
  return guarded([&] {
    edgedec::observe_drafts(*drafting, *seen, enabled, seconds);
    return 0;
  });
}

int ed_drafting_add(ed_drafting* drafting, int number, int n, const int32_t* tokens, const int32_t* parents,
                    const double* claims, const double* estimates, int32_t* places) {
  return guarded([&] {
    if (number < 0 || number > 30) return ED_DRAFT_REFUSED;
    for (int i = 0; i < n; i++)
      if (parents[i] >= i) return ED_DRAFT_REFUSED;
    drafting->watched = -1;
    drafting->merger.add(number, (size_t)n, tokens, parents, claims, estimates, places);
    return 0;
  });
}

void ed_drafting_clear(ed_drafting* drafting) { drafting->merger.clear(), drafting->watched = -1; }

int ed_drafting_tree(ed_drafting* drafting, int chain, ed_draft_tree* tree) {
  return guarded([&] { return fill_order(*drafting, chain != 0, *tree); });
}

int ed_drafting_cut(const ed_drafting* drafting, const int32_t* nodes, int n, ed_draft_tree* tree) {
  return guarded([&] { return drafting->merger.cut({nodes, nodes + n}, *tree) ? 0 : ED_DRAFT_REFUSED; });
}

int ed_drafting_test(ed_drafting* drafting, const int64_t* picked, int n, const ed_calibration* calibrations,
                     int32_t* path) {
  if (calibrations) drafting->watched = -1;
  return drafting->merger.test(picked, n, calibrations, path);
}

int ed_walk(const int64_t* tokens, const int64_t* parents, int rows, int root, const int32_t* choices, int stride,
            int64_t* path, int64_t* picked) {
  int n = 1, last = root;
  path[0] = root, picked[0] = choices[0];
  if (picked[0] < 0) return 0;
  // A parent comes before its children, so the path lies in order.
  for (int row = root + 1; row < rows; row++) {
    if (parents[row] != last || tokens[row] != picked[n - 1]) continue;
    last = row, path[n] = row;
    picked[n] = choices[(size_t)(row - root) * stride];
    if (picked[n++] < 0) return 0;
  }
  return n;
}
