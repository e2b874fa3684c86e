#include "govern.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>

namespace edgedec {

namespace {

// Constants of edgedec/speculation: prices, bank, record; of edgedec/decoding/allocation.
constexpr int MOST = 64, TRIAL = 8, FIRST = 16, LONGEST = 256;
constexpr double SURE = 0.98, SUREST = 0.1, OWN = 4, KEEP = 0.99, GOOD = 4;
constexpr double WEIGHT = 4, QUICK = 0.2, SMOOTH = 0.1, SPIKE = 4, SHARE = 0.004;
constexpr double READING = 0.75, MARGIN = 1.2;

// A stopwatch of the thread's own work: wall time, but no more than twice its processor time, because another program may
// have the core.
class Watch {
 public:
  double seconds() const { return std::min(wall() - wall_, 2 * (busy() - busy_)); }

 private:
  static double wall() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
  static double busy() {
#if defined(CLOCK_THREAD_CPUTIME_ID)
    timespec at;
    if (!clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at)) return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
#endif
    return wall();
  }
  const double wall_ = wall(), busy_ = busy();
};

double trust_of(const ed_bank& bank) { return std::min(1.0, (bank.accepted + GOOD) / (bank.expected + GOOD)); }

// The most seconds that a draft may cost if all of it is wrong.
double risked(double left, double first) { return left / std::max(1.0 - first, SUREST); }

void add(ed_bank& bank, double seconds) { bank.left = std::min(bank.left + seconds, bank.most * bank.call); }

void open(ed_bank& bank, double call) {
  bank.call = call;
  if (!bank.opened) bank.left = bank.most * call, bank.opened = 1;
  bank.left = std::min(bank.left, bank.most * call);
}

void add(ed_means& means, double seconds, double tokens, double rows, double smooth) {
  means.n++;
  if (means.n == 2) means.seconds = std::min(means.seconds, seconds);
  else if (means.n > TRIAL) seconds = std::min(seconds, SPIKE * means.seconds);
  const double rate = std::max(smooth, 1.0 / (double)means.n);
  means.seconds += (seconds - means.seconds) * rate;
  means.tokens += (tokens - means.tokens) * rate;
  means.rows += (rows - means.rows) * rate;
}

}  // namespace

void Prices::set(const ed_governor& g, int64_t context) {
  const double cell = g.per_cell * (double)context;
  seconds = g.seconds, rows = std::min(g.sequences, g.most), most = std::min(MOST, g.most - rows);
  each = (1 - READING) * cell;
  call = seconds[rows] + cell * g.sequences;
  const double mean = call / g.sequences + g.plain;
  token = mean, draft = g.draft;
  if (g.ties > 0) {
    const double after = g.after ? seconds[std::min(g.after, g.most)] : 0;
    token = (seconds[std::min(g.after + g.ties, g.most)] - after) / g.ties + cell + g.plain;
  }
  weight = token / mean;
}

double Prices::of_rows(double n) const {
  const int low = std::min((int)n, most), high = std::min(low + 1, most);
  return added(low) + (n - low) * (added(high) - added(low));
}

int Prices::affordable(double limit) const {
  int n = most;
  while (n && added(n) + draft > limit) n--;
  return n;
}

// ---- whether the drafters propose ------------------------------------------------------------------

void Governing::start(ed_governor* governor, const int32_t* more, int n, int fresh) {
  g_ = governor, begun_ = false, fresh_ = fresh;
  came_.assign(more, more + n);
}

double Governing::chance(int n) const { return prices_.weight * trust_of(*g_->bank) * tree().chance(best_[(size_t)n]); }

double Governing::gain() const {
  const ed_means &own = g_->record->own, &shared = g_->shared->means;
  const double weight = shared.n >= TRIAL ? WEIGHT : 0, n = (double)own.n + weight;
  if (n == 0) return 0;
  const double tokens = ((double)own.n * own.tokens + weight * shared.tokens) / n;
  const double rows = ((double)own.n * own.rows + weight * shared.rows) / n;
  return tokens * prices_.token - prices_.of_rows(rows);
}

double Governing::takes() const {
  const ed_means &own = g_->record->own, &shared = g_->shared->means;
  return own.n > 1 || !shared.n ? own.seconds : shared.seconds;
}

bool Governing::ready() const {
  const ed_experience& shared = *g_->shared;
  if (g_->record->wait) return false;
  return shared.means.n < TRIAL || gain() >= takes() || shared.calls >= shared.until;
}

void Governing::begin(int64_t context) {
  ed_governor& g = *g_;
  ed_drafting& drafting = *g.drafting;
  drafting.text.ids.insert(drafting.text.ids.end(), came_.begin(), came_.end());
  drafting.text.prompt = g.prompt;
  came_.clear(), nodes_.clear();
  begun_ = true, watched_ = false, offered_ = all_ = 0, why_ = ED_WAITING, context_ = context, spent_ = 0;
  g.length = context + 1;
  prices_.set(g, context);
  open(*g.bank, prices_.call);
  add(*g.bank, g.bank->rate * ((double)fresh_ * prices_.token));
  g.record->wait = std::max<int64_t>(g.record->wait - 1, 0);
  g.shared->calls++;
  const double left = g.bank->left + g.account->own;
  const int64_t room = std::min({g.capacity - g.length, g.left - 1, (int64_t)g.largest - 1});
  if (room < 1) why_ = ED_NO_ROOM;
  else if ((g.named && left > 0) || ready()) {
    const double row = prices_.added(std::min(1, prices_.most)) + prices_.draft;
    if (risked(left, SURE) > takes() + row) watch((int)std::min<int64_t>(room, g.limit), left);
    else why_ = ED_SHORT;
  }
}

// Lets the drafters propose at most `most` nodes.
void Governing::watch(int most, double left) {
  const Watch time;
  watched_ = true;
  offer(most, left);
  spent_ = g_->took ? g_->took[0] : time.seconds();
}

// Offers the proposed nodes that could pay and that the balance allows.
void Governing::offer(int most, double left) {
  ed_governor& g = *g_;
  ed_drafting& drafting = *g.drafting;
  ed_proposal asked{};
  asked.estimates = g.calibrations, asked.seconds = g.drafter_seconds, asked.least = g.least;
  asked.nodes = std::max(most, 1), asked.enabled = g.enabled;
  test_watched(drafting, g.calibrations);
  merge_drafts(drafting, asked);
  best_ = drafting.merger.order(false);
  drafting.watched = (int64_t)drafting.text.ids.size();
  why_ = best_.empty() ? ED_NO_GUESS : ED_REFUSED;
  costs_.assign({0.0, prices_.token});
  for (int n = 1; n <= std::min(most, prices_.most); n++)
    costs_.push_back(prices_.token + prices_.draft + prices_.added(n));
  const double trust = trust_of(*g.bank);
  note_expected(trust);
  const ed_watch paying{costs_.data(), 0, 0, trust, 0, (int32_t)costs_.size() - 1, 0};
  if (!drafting.merger.paying(paying)) return;
  const int affordable = prices_.affordable(risked(left, trust * drafting.merger.chance(best_[0])));
  offered_ = std::min({most, affordable, (int)best_.size()});
  if (!offered_) why_ = ED_SHORT;
}

// What the guesses would bring, relative to what their rows cost: `expected_of` of edgedec/speculation/decide.py.
void Governing::note_expected(double trust) {
  double tokens = 0, best = 0;
  g_->expected = 0;
  for (int n = 1; n <= std::min(prices_.most, (int)best_.size()); n++) {
    tokens += trust * tree().chance(best_[(size_t)n - 1]);
    const double cost = std::max(prices_.added(n) + prices_.draft, 1e-3 * prices_.token);
    const double rate = (1 + tokens) / (prices_.token + cost);
    if (rate > best) best = rate, g_->expected = tokens * prices_.token / cost;
  }
}

void Governing::grant(int nodes, int all) {
  all_ = all;
  nodes_.assign(best_.begin(), best_.begin() + nodes);
  std::sort(nodes_.begin(), nodes_.end());
  if (nodes) g_->sizes[nodes]++;
}

// ---- what came of it -------------------------------------------------------------------------------

void Governing::end(const ed_verified& seen, int64_t rows) {
  ed_governor& g = *g_;
  double tokens = 0;
  if (watched_) tokens = learn(seen);
  if (nodes_.empty()) g.silent[why_]++;
  fresh_ = seen.accepted - (seen.accepted && seen.picked[seen.accepted - 1] < 0);
  came_.assign(seen.picked, seen.picked + fresh_);
  g.left -= fresh_, g.steps++, g.drafted += (int64_t)nodes_.size(), g.came += nodes_.empty() ? 0 : seen.accepted - 1;
  begun_ = false;
  if (!watched_) return;
  g.spent += spent_;
  g.record->took += spent_, g.record->seconds += spent_;
  judge(tokens, (double)nodes_.size());
  if (nodes_.empty()) return settle(0, spent_);
  const int64_t last = g.most, drafted = std::max<int64_t>(std::min<int64_t>(all_, rows - 1), 1);
  const double row = (g.seconds[std::min(rows, last)] - g.seconds[std::min(rows - drafted, last)]) / (double)drafted +
                     prices_.each;
  settle(prices_.token * (double)(fresh_ - 1), row * (double)nodes_.size() + spent_ + prices_.draft);
}

// Gives the drafters the result; returns the tokens that the guesses that ran were expected to add.
double Governing::learn(const ed_verified& seen) {
  const Watch time;
  const double tokens = nodes_.empty() ? 0 : count_guesses(seen);
  observe_drafts(*g_->drafting, seen, g_->enabled, g_->drafter_seconds);
  spent_ += g_->took ? g_->took[1] : time.seconds();
  return tokens;
}

// Tests all guesses against the picked tokens; returns the tokens that those that ran were expected to add.
double Governing::count_guesses(const ed_verified& seen) {
  ed_governor& g = *g_;
  ed_drafting& drafting = *g.drafting;
  path_.resize((size_t)seen.accepted);
  drafting.watched = -1;
  double expected = 0;
  for (size_t i = 0; i < nodes_.size(); i++) expected += tree().chance(best_[i]);
  path_.resize((size_t)drafting.merger.test(seen.picked, seen.accepted, g.calibrations, path_.data()));
  int accepted = 0;
  for (const int32_t node : nodes_) {
    const bool right = std::find(path_.begin(), path_.end(), node) != path_.end();
    accepted += right;
    for (int number = 0; number < 31; number++)
      if (tree().by(node) >> number & 1) g.proposed[number]++, g.accepted[number] += right;
  }
  g.bank->expected = g.bank->expected * KEEP + expected;
  g.bank->accepted = g.bank->accepted * KEEP + accepted;
  return expected;
}

void Governing::judge(double tokens, double rows) {
  ed_record& record = *g_->record;
  ed_experience& shared = *g_->shared;
  const double took = record.took;
  record.took = 0, record.asked++;
  const bool first = !record.own.n && shared.means.n;  // reads the text, which tells nothing about the next ones
  add(record.own, took, tokens, rows, QUICK);
  add(shared.means, first ? std::min(took, shared.means.seconds) : took, tokens, rows, SMOOTH);
  int64_t longest = LONGEST;
  if (prices_.token > 0)
    longest = std::max<int64_t>((int64_t)std::min(std::ceil(takes() / (SHARE * prices_.token)), (double)LONGEST), 1);
  if (shared.means.n < TRIAL || gain() >= takes()) {
    record.next = std::max<int64_t>(record.next / 2, FIRST);
    shared.wait = std::max<int64_t>(shared.wait / 2, FIRST);
    return;
  }
  record.wait = std::min(record.next, longest), record.next = std::min<int64_t>(2 * record.next, LONGEST);
  shared.until = shared.calls + record.wait;
  shared.wait = std::min<int64_t>(2 * shared.wait, LONGEST);
}

void Governing::settle(double saved, double cost) {
  ed_bank& bank = *g_->bank;
  bank.saved += saved, bank.lost += cost;
  const double own = g_->account->own + (saved - cost);
  g_->account->own = std::min(std::max(own, 0.0), OWN * prices_.call);
  add(bank, own - g_->account->own);
}

// ---- all texts of a forward ------------------------------------------------------------------------

void allocate(const std::vector<Governing*>& texts, const OtherRows& others) {
  struct Node {
    double chance;
    size_t owner;
  };
  std::vector<Node> nodes;
  int64_t rows = others.rows, cells = others.cells;
  double between = 0;
  std::vector<Governing*> offering;
  for (Governing* text : texts) {
    if (!text->offered()) {
      rows++, cells += text->context();
      continue;
    }
    for (int n = 0; n < text->offered(); n++) nodes.push_back({text->chance(n), offering.size()});
    offering.push_back(text);
    between += text->state().plain;
  }
  if (offering.empty()) return;
  const ed_governor& g = offering[0]->state();
  const int64_t quiet = (int64_t)(texts.size() - offering.size()), last = g.most;
  rows += (int64_t)offering.size();
  for (Governing* text : offering) cells += text->context();
  const auto at = [&](int64_t k) { return g.seconds[std::min(k, last)]; };
  double tokens = (double)((int64_t)offering.size() + quiet + others.tokens);
  const int64_t decoding = (int64_t)offering.size() + quiet + others.decoding;
  const double whole = at(rows) + g.per_cell * (double)cells + between;
  double alone = whole;
  if (decoding != rows) alone = at(decoding) + g.per_cell * (double)cells * (double)decoding / (double)rows + between;
  const double plain = tokens / alone;
  tokens = decoding == rows ? tokens : tokens * whole / alone;
  std::stable_sort(nodes.begin(), nodes.end(), [](const Node& a, const Node& b) { return a.chance > b.chance; });
  const int64_t room = std::max<int64_t>(std::min<int64_t>(g.largest, last) - rows, 0);
  nodes.resize(std::min(nodes.size(), (size_t)room));
  std::vector<int> counts(offering.size(), 0), kept;
  double sum = 0, best = 0, found = 0, extra = 0;
  int64_t read = 0;
  size_t n = 0;
  for (size_t k = 0; k < nodes.size(); k++) {
    const size_t owner = nodes[k].owner;
    sum += nodes[k].chance, read += offering[owner]->context();
    if (!counts[owner]++) extra += offering[owner]->state().draft;
    const double seconds = g.seconds[rows + (int64_t)k + 1] +
                           g.per_cell * ((double)cells + (1 - READING) * (double)read) + (between + extra);
    const double speed = (tokens + sum) / seconds / plain;
    if (speed > best) best = speed, n = k + 1, found = tokens + sum, kept = counts;
  }
  const bool worth = best > 1.0 && found - tokens >= MARGIN * (found / best - tokens);
  for (size_t i = 0; i < offering.size(); i++) offering[i]->grant(worth ? kept[i] : 0, worth ? (int)n : 0);
}

}  // namespace edgedec
