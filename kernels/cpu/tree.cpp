// Trees of rows: which rows of its tree a row sees.
#include "tree.h"

#include <algorithm>
#include <unordered_map>

namespace edgedec {

namespace {

int64_t group_of(const ed_sequence& s, int row) { return s.groups ? s.groups[row] : -1; }

bool is_chain(const ed_sequence& s) {
  for (int i = 0; i < s.first + s.rows; i++)
    if ((s.parents && s.parents[i] != i - 1) || group_of(s, i) >= 0) return false;
  return true;
}

// Whether all rows of the tree are in one group, one after another.
bool is_text(const ed_sequence& s) {
  if (s.first || group_of(s, 0) < 0) return false;
  for (int i = 0; i < s.rows; i++)
    if ((s.parents && s.parents[i] != i - 1) || group_of(s, i) != group_of(s, 0) || s.positions[i] != s.positions[0] + i)
      return false;
  return true;
}

// The position of a row without parent, if all rows' positions follow from it; else -1.
int64_t base_position(const ed_sequence& s, const Tree& tree) {
  const int64_t base = s.positions[0];
  for (int i = 0; i < s.first + s.rows; i++)
    if (s.positions[i] != base + (tree.chain ? i : tree.depth[i]) || group_of(s, i) >= 0) return -1;
  return base;
}

// Adds what any of `rows` sees, ascending, to the paths.
void add_path(const ed_sequence& s, const std::vector<int32_t>& rows, Tree& tree, std::vector<char>& seen) {
  const size_t from = tree.path.size();
  for (int row : rows)
    for (int64_t at = row; at >= 0 && !seen[at]; at = s.parents ? s.parents[at] : at - 1) {
      seen[at] = 1;
      tree.path.push_back((int32_t)at);
    }
  std::sort(tree.path.begin() + from, tree.path.end());
  for (size_t i = from; i < tree.path.size(); i++) seen[tree.path[i]] = 0;
}

}  // namespace

void build_tree(const ed_sequence& s, bool texts, Tree& tree) {
  const int count = s.first + s.rows;
  tree.depth.clear(), tree.begin.clear(), tree.end.clear(), tree.path.clear();
  tree.text = texts && is_text(s);
  if (tree.text) {
    tree.chain = true, tree.base = s.positions[0];
    return;
  }
  tree.chain = is_chain(s);
  if (!tree.chain) {
    for (int i = 0; i < count; i++) {
      const int64_t parent = s.parents ? s.parents[i] : i - 1;
      tree.depth.push_back(parent < 0 ? 0 : tree.depth[parent] + 1);
    }
    std::unordered_map<int64_t, std::vector<int32_t>> groups;
    for (int i = 0; i < count; i++)
      if (group_of(s, i) >= 0) groups[s.groups[i]].push_back(i);
    std::unordered_map<int64_t, int32_t> listed;  // of each group, the first computed row, which has its list
    std::vector<char> seen(count);
    for (int row = s.first; row < count; row++) {
      const int64_t group = group_of(s, row);
      const auto found = listed.find(group);
      if (group >= 0 && found != listed.end()) {
        tree.begin.push_back(tree.begin[found->second]), tree.end.push_back(tree.end[found->second]);
        continue;
      }
      if (group >= 0) listed[group] = row - s.first;
      tree.begin.push_back((int32_t)tree.path.size());
      add_path(s, group < 0 ? std::vector<int32_t>{row} : groups[group], tree, seen);
      tree.end.push_back((int32_t)tree.path.size());
    }
  }
  tree.base = base_position(s, tree);
}

}  // namespace edgedec
