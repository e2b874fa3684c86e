// The C interface of the CPU engine; kernels/cpu/__init__.py mirrors it. ABI counts its changes.
#pragma once
#include <stdint.h>

#define ED_ABI 31

#if defined(ED_API)  // defined as extern "C" without export by a library with an interface of its own (kernels/lib)
#elif defined(_WIN32)
#define ED_API extern "C" __declspec(dllexport)
#else
#define ED_API extern "C" __attribute__((visibility("default")))
#endif

// ---- the model ---------------------------------------------------------------------------------

// A weight: `format`, `layout`, `zeros` (or null) and whether these are `offsets` as in kernels.h; format 0: there is none.
struct ed_tensor {
  int32_t format, layout, n, k, block, offsets;
  const void *data, *scales, *zeros;
};

// kind 0: none, 1: rms, 2: layer, 3: times `weight`. `bias` may be null.
struct ed_norm {
  int32_t kind, reserved;
  const float *weight, *bias;
};

struct ed_attention {
  int32_t heads, kv_heads, head_dim, rope, window, sinks, qk_norm, distances;  // rope -1: none; window 0: none
  float scale, softcap;  // qk_norm 0: none, 1: by head, 2: full, 3: by head, with weights of its own
  ed_tensor qkv, o;
  const float *qkv_bias, *o_bias, *q_norm, *k_norm;
  ed_norm embedding_norm;  // kind above 0: qkv is [.., 2 hidden] and reads the normed embedding, then the normed state
  // gate: rows of qkv after the values, a sigmoid of each multiplies the output; of a head or a channel each. with_embedding 1:
  // qkv is [.., 2 hidden] and reads the state and the embedding as one row, normed by weights [2 hidden] of the block's norm.
  int32_t gate, with_embedding;
  const float* distance;  // of texts: [2 distances + 1, heads], added to the scores of keys at -distances .. from the row
  const float* sink_logit;  // [heads]: a score of no token, which has no value; null: none
  const float *q_norm_bias, *k_norm_bias;  // null: q and k are normed by their root mean square, else by LayerNorm
  const float* slopes;                     // [heads], times the distance of key and row taken from scores; null: nothing
  ed_norm inner_norm;                      // of what `o` reads
  float clip;                              // q, k and v are cut to -clip .. clip first; 0: they are not
  int32_t qk_norm_last;                    // 1: q and k by head are normed after the rope
  int32_t k_is_v, v_norm;  // 1: qkv has no values, which are the keys before norm and rope; 1: values of a head are normed, without weights
  // Above 0: heads are pairs, whose queries have head_dim / 2 values (edgedec/spec/differential.py); lambdas [4, head_dim / 2],
  // pair_norm [head_dim].
  float differential;
  int32_t relative;  // 0: none; else tables [heads, 2 relative, head_dim] that queries and keys are scored against (or null)
  const float *lambdas, *pair_norm, *relative_k, *relative_q;  // (edgedec/spec/relative.py)
  const int32_t* relative_rows;  // [2 relative_length - 1]: their row by query - key from 1 - relative_length on
  int32_t relative_length, nothing;
};

// gated: up is [2 inner, hidden], the gate first; else [inner, hidden].
struct ed_mlp {
  int32_t inner, gated, activation, reserved;
  ed_tensor up, down;
  const float *up_bias, *down_bias;
  ed_norm inner_norm;  // of what `down` reads
  const float* xielu;  // [4], of that activation (edgedec/runtimes/reference/numeric.py)
  const float* cutoff;  // [1]: gates are cut off below so many spreads above a row's mean, and count from there; or null
};

// Expert e: rows e * 2 inner .. of gate_up, rows e * hidden .. of down; plain: its rows e * inner .. are activated without a
// gate, the shared expert's too. router 0: softmax over all, then the top_k largest; 1: softmax over the top_k largest
// logits; 2: sigmoid; 3: the top_k largest logits, each weighed by softmax among those that are not chosen before it and
// not further below it than `jitter` allows (edgedec/spec/moe.py). The choice adds router_bias (or null), the weight does not.
// 4: all experts, weighed by relu(logits) normed by the root mean square, times score_norm; those of weight 0 are not used.
// levels: expert e is one of those of level levels[e], in order, 0: in gate_up and down, l: in more_up[l - 1] and more_down[l - 1].
// A row whose last expert weighs less than drop_below of its first leaves it out, but one of which the router reads values
// whose sizes sum to protect_from or more (0: no such one).
// groups: of experts, 0 or 1: none; the choice is among those of the top_groups whose two best have the largest sum.
#define ED_LEVELS 4
struct ed_moe {
  int32_t experts, top_k, inner, activation, router, normalize, shared_inner, groups;
  float scale;
  int32_t top_groups, plain;
  float jitter;
  ed_tensor router_weight, gate_up, down, shared_gate_up, shared_down, shared_gate;
  const float* router_bias;
  const float *router_logit_bias, *gate_up_bias, *down_bias;  // or null; of the experts as their rows
  const float *router_norm, *expert_scale;  // or null; [hidden]: the router reads the state so normed; [experts]: factors of weights
  const float* score_norm;                  // [experts], of router 4
  const int32_t* levels;                   // [experts], or null: all are of level 0
  ed_tensor more_up[ED_LEVELS - 1], more_down[ED_LEVELS - 1];
  float drop_below, protect_from;
  const float* sum_bias;    // [hidden], added once to what a row's experts make; or null
  int32_t early, reserved;  // early 1: the router reads the state before the block before this one, by router_norm or as it is
};

struct ed_ssm {
  int32_t heads, head_dim, state_size, groups, conv_size, norm_groups;
  float dt_min, dt_max;
  ed_tensor in_proj, out_proj;
  const float *in_proj_bias, *out_proj_bias, *conv, *conv_bias, *dt_bias, *a, *d, *gate_norm;
};

// part_norm: of what time steps are made of, of B and of C: 0 none, 1 by the root mean square, 2 then times dt_norm,
// b_norm, c_norm. a: [inner, state_size]. keeps 1: later blocks read its outputs before the gate.
struct ed_s6 {
  int32_t inner, state_size, dt_rank, conv_size, part_norm;
  float part_eps;
  int32_t keeps, reserved;
  ed_tensor in_proj, x_proj, dt_proj, out_proj;
  const float *in_proj_bias, *out_proj_bias, *conv, *conv_bias, *dt_bias, *a, *d, *dt_norm, *b_norm, *c_norm;
};

// Rows of in_proj: B, C and x, `channels` each; out_proj (C * conv(B * x)).
struct ed_conv {
  int32_t channels, conv_size;
  ed_tensor in_proj, out_proj;
  const float *in_proj_bias, *out_proj_bias, *conv, *conv_bias;
};

// The gated delta rule. Rows of in_proj: v, k, q; z; b; g, of z and g `rank` rows each for gate_up and decay_up, if not 0.
// decays: of a head, 1 or key_dim; sigmoid: z is the argument of one, else of silu.
struct ed_delta {
  int32_t heads, head_dim, key_dim, groups, conv_size, decays, rank, sigmoid;
  float beta_scale, eps;
  ed_tensor in_proj, out_proj, gate_up, decay_up;
  const float *conv, *dt_bias, *a, *gate_norm;
};

// Of a layer that is normed after each residual: `attention`, whose queries are multiplied by a matrix a head, `curvature`
// [heads, head_dim, head_dim], once they are turned, and `mlp`. entry: of what enters, kind 0: none.
struct ed_power_law {
  ed_norm entry, attention, output;
  const float* curvature;
};

// Of latent attention (`latent.h`), beside an `attention` of one kv head of rope_dim + rank values, without qkv. q:
// [heads * (rope_dim + nope_dim), q_rank], or of hidden values if q_rank is 0, where q_a is none; kv_a: [rope_dim + rank,
// hidden]; k_up [heads * rank, nope_dim]; v_up [heads * v_dim, rank]; `o` reads heads * v_dim values. Biases may be null.
struct ed_latent {
  int32_t rank, rope_dim, nope_dim, v_dim, q_rank;
  float inner_eps;  // of q_a_norm and kv_norm
  ed_tensor q_a, q, kv_a, k_up, v_up;
  const float *q_a_bias, *kv_a_bias, *q_a_norm, *kv_norm;
};

// e = rms(context x0) * context_norm + values `first` .. first + size - 1 of the token's row of the model's `lookup`;
// out (activation(gate x) * e). x0: the embedding as it entered the first block.
struct ed_lookup {
  int32_t size, first, activation, streams;  // streams 1: added to all streams of the state but the first, not to the state
  ed_tensor gate, context, out;
  const float* context_norm;
  const float* input_scale;  // [hidden], times the state that the gate reads, which then is not normed; or null
};

// Streams beside the state (edgedec/spec/altup.py). A block that enters or leaves has projections [streams - 1], the others
// a router [streams, hidden] of what is normed by router_norm, and coefs: predict [streams * streams, streams], correct
// [streams, streams].
enum { ED_ENTER, ED_PREDICT, ED_CORRECT, ED_LEAVE };
struct ed_altup {
  int32_t step, streams, active, reserved;
  ed_tensor router;
  const ed_tensor* projections;
  const float *router_norm, *coefs;
};

// n + rms(right left n) * low_norm of n, the normed state.
struct ed_laurel {
  int32_t rank, reserved;
  ed_tensor left, right;
  const float* low_norm;
};

// RWKV-7's time mixing. mix [6, hidden]: of r, decays, k, v, rates and gates; rows of the other vectors: channels of keys,
// of out_norm: values. value_down is there if `values_of` of the block names one.
struct ed_rwkv7 {
  int32_t heads, head_dim, key_dim;
  float eps;
  ed_tensor r, k, v, o, decay_down, decay_up, rate_down, rate_up, gate_down, gate_up, value_down, value_up;
  const float *mix, *decay_bias, *rate_bias, *value_bias, *key_scale, *key_rate, *bonus, *out_norm, *out_norm_bias;
};

// down(relu(up (x + (before - x) mix))^2), before: the normed state of the row before.
struct ed_channel_mix {
  ed_tensor up, down;
  const float* mix;
};

// The gated memory unit: out(m * silu(gate x)), m: outputs before the gate of block `values_of`, an s6 block that keeps them.
struct ed_gmu {
  int32_t inner, reserved;
  ed_tensor gate, out;
  const float *gate_bias, *out_bias;
};

// The stream of a pre-router is values `first` on of the token's row of the model's `lookup`, as many as heads and head_dim
// of `attention` make: x = e + attention; x += down silu(up norm(x)); the largest of router norm(x) is the row's expert.
struct ed_pre_router {
  int32_t experts, first;
  ed_tensor up, down, router;
  const float *up_bias, *down_bias, *router_bias, *up_norm, *out_norm;
};

// kind: 1 attention, 2 mlp, 3 moe, 4 ssm, 6 power_law, 7 latent, 9 s6, 10 conv, 11 delta, 12 attention over the slots of
// block `slots_of` (whose qkv has queries alone), 13 lookup, 14 rwkv7, 15 channel_mix, 16 gmu, 17 altup, 18 laurel,
// 19 pre_router; the pointer of that kind is set (and attention and mlp for power_law, attention for latent, 12 and 19),
// the others are null. branch 1: the next block reads what this one reads,
// and both are added. feeds 1: what it makes is not added, but read by the next block: alone by one that feeds too, else beside
// the state (edgedec/spec/branches.py).
struct ed_block {
  int32_t kind, branch, feeds, reserved;
  ed_norm norm, post_norm, after_norm;  // after_norm: of the state after the sum
  ed_norm joined_norm;       // of the sum of what this block and those beside it add; of the last of them
  ed_norm again_norm;        // of the state that the block read plus that after after_norm
  const float* state_scale;  // [1], times the state after all that; or null
  int32_t slots_of, values_of;  // values_of: the block whose values an rwkv7 or gmu block, or experts a moe, reads; -1: none
  const ed_attention* attention;
  const ed_mlp* mlp;
  const ed_moe* moe;
  const ed_ssm* ssm;
  const ed_power_law* power_law;
  const ed_latent* latent;
  const ed_s6* s6;
  const ed_conv* conv;
  const ed_delta* delta;
  const ed_lookup* lookup;
  const ed_rwkv7* rwkv7;
  const ed_channel_mix* channel_mix;
  const ed_gmu* gmu;
  const ed_altup* altup;
  const ed_laurel* laurel;
  const ed_pre_router* pre_router;
};

// Tables [positions, pairs].
struct ed_rope {
  const float *cos, *sin;
  int32_t pairs, positions;
};

struct ed_model {
  int32_t vocab, hidden, n_blocks, n_ropes;
  float norm_eps, final_softcap, embed_scale;
  int32_t texts;  // 1: an encoder: the rows of a text see each other, and windows reach to both sides
  ed_tensor embed, head;
  ed_norm final_norm;
  const ed_block* blocks;
  const ed_rope* ropes;
  const float* head_bias;  // [vocab], or null
  const float* types;      // [n_types, hidden], added to embeddings of tokens first; or null
  const float* positions;  // [n_positions, hidden], added to embeddings of tokens; or null
  ed_norm entry_norm;      // of embeddings of tokens, with their positions
  int32_t n_positions, streams;  // streams: that altup blocks keep beside the state; 0: none
  ed_tensor lookup;  // [vocab, values of all lookup blocks]
  // What the head reads is head_norm(activation(head_layer final_norm(x) + head_layer_bias)); format 0: final_norm(x).
  ed_tensor head_layer;  // [hidden, hidden]
  const float* head_layer_bias;  // [hidden], or null
  ed_norm head_layer_norm;
  int32_t head_activation, n_types;
};

// ---- caches ------------------------------------------------------------------------------------

// Pages of the caches of one model in one format. Independent of an engine, and of the model once it is made.
struct ed_cache_pool;
struct ed_cache;

ED_API int ed_cache_page_slots(void);
ED_API uint64_t ed_kv_row_bytes(int dim, int kv);
// Null: not enough memory, or a block kind or format that is not supported.
ED_API ed_cache_pool* ed_cache_pool_new(const ed_model* model, int kv);
ED_API void ed_cache_pool_free(ed_cache_pool* pool);  // its caches may live on
ED_API int64_t ed_cache_pool_pages(const ed_cache_pool* pool);  // pages in use
ED_API void ed_cache_pool_trim(ed_cache_pool* pool);  // frees memory that is kept for later pages

ED_API ed_cache* ed_cache_new(ed_cache_pool* pool, int capacity);
ED_API void ed_cache_free(ed_cache* cache);
ED_API int ed_cache_length(const ed_cache* cache);
// A fork with the first `length` committed tokens, or fewer if recurrent blocks have no checkpoint there.
ED_API ed_cache* ed_cache_fork(const ed_cache* cache, int length, int capacity);
// Become a fork of `other`; the capacity stays.
ED_API int ed_cache_adopt(ed_cache* cache, const ed_cache* other, int length);
// Numbers of pending rows, ascending; null: 0 .. n - 1. 0, or why not (ERRORS in __init__.py).
ED_API int ed_cache_commit(ed_cache* cache, const int64_t* rows, int n);
ED_API int ed_cache_attach(ed_cache* cache, int n);  // the first n pending rows: further slots of the last token
ED_API void ed_cache_rollback(ed_cache* cache);
ED_API int ed_cache_truncate(ed_cache* cache, int length);  // the new length
ED_API int ed_cache_drop(ed_cache* cache, int block, const int64_t* slots, int n);
// Of each kv head its own n slots [kv_heads, n]. Slot i is then of the latest token that a head has there.
ED_API int ed_cache_drop_by_head(ed_cache* cache, int block, const int64_t* slots, int n);
// Adds keys and values of `slots`, weighted by [kv_heads, n], to those of the slots `into`, which are
// weighted by 1 minus these weights.
ED_API int ed_cache_merge(ed_cache* cache, int block, const int64_t* into, const int64_t* slots, const float* weights,
                          int n);
// Of the slots from `from` on [kv_heads, slots - from, head_dim].
ED_API void ed_cache_keys(const ed_cache* cache, int block, int from, float* out);
// Moves full pages of a block, by their numbers, to files of a folder: the system can drop them from memory
// and reads them on use. They are deleted with the cache. Pages shared with other caches stay in memory.
ED_API int ed_cache_offload(ed_cache* cache, int block, const int32_t* pages, int n, const char* folder);
ED_API int ed_cache_slots(const ed_cache* cache, int block);
ED_API void ed_cache_positions(const ed_cache* cache, int block, int64_t* out);
ED_API void ed_cache_tokens(const ed_cache* cache, int block, int64_t* out);  // index in the text of each slot's token
ED_API int ed_cache_reserve(ed_cache* cache, int rows);  // memory for that many rows after the committed ones
ED_API void ed_cache_pages(const ed_cache* cache, int64_t* held, int64_t* shared);
// The pages of the committed slots of the first attention block: equal numbers are one page. `out` null: only how many.
ED_API int ed_cache_page_ids(const ed_cache* cache, int64_t* out);
ED_API uint64_t ed_cache_bytes(const ed_cache* cache);  // of memory, shared pages included, those in files not
ED_API uint64_t ed_cache_save_bytes(const ed_cache* cache);
ED_API void ed_cache_save(const ed_cache* cache, uint8_t* out);
ED_API int ed_cache_load(ed_cache* cache, const uint8_t* data, uint64_t size);
// The data that another cache with the first `from` tokens appends to have all tokens; 0 bytes: not possible
// (slots were dropped, attached or renamed).
ED_API uint64_t ed_cache_rest_bytes(const ed_cache* cache, int from);
ED_API void ed_cache_save_rest(const ed_cache* cache, int from, uint8_t* out);
ED_API int ed_cache_append(ed_cache* cache, const uint8_t* data, uint64_t size);

// ---- calls -------------------------------------------------------------------------------------

struct ed_route;

// y += scale * b (a x); a [rank, k], b [n, rank]; rank 0: none. route: of a set of adapters, instead; or null.
struct ed_lora {
  int32_t rank;
  float scale;
  const float *a, *b;
  const ed_route* route;
};

// A matrix of a set of adapters: to each of its parts a row adds what two of them make of it, those with the best scores
// gates . standardized(x), by their shares of the softmax of all scores.
struct ed_route {
  int32_t parts, adapters;
  const float* gates;    // [parts, adapters, k]
  const int32_t* first;  // [parts]: the first output of each
  const int32_t* count;  // [parts]: and how many
  const ed_lora* loras;  // [parts, adapters]; b [count, rank]
};

#define ED_LORA_PARTS 12

// [n_blocks, ED_LORA_PARTS]: of each block its first and its last matrix (qkv, o; up, down; in_proj, out_proj; moe:
// none), of power_law those of both parts, of others also those between (rwkv7: r, o, k, v, and the pairs of decays, rates,
// gates and values).
struct ed_adapter {
  const ed_lora* parts;
};

// Rows of the model's head for the best of some tokens: row i of `head` is that of token ids[i], ascending.
struct ed_readout {
  ed_tensor head;
  const int32_t* ids;
};

// The committed slots of an attention block that rows see, by kv head (edgedec/runtime/view.py). Lists of all heads
// lie one after another, ascending in each, up to `ends` [kv_heads]; null: none.
struct ed_view {
  int32_t group;    // rows that share a selection; 0: all rows of the call
  int32_t striped;  // whether `theta` holds
  float theta;
  const int32_t *sinks, *recent, *pages;  // [kv_heads]; pages -1: all
  const int32_t *chosen_ends, *chosen;    // pages
  const int32_t *slot_ends, *slots;
  const int32_t* runs;  // of each of `slots`: how many from there on are seen as one; null: itself
};

// Draws the tokens of one text (below).
struct ed_sampler;

// The rows of one text: a tree of `first + rows` rows after the committed tokens, of which the last `rows` are computed
// and the others were by an earlier call. Arrays [first + rows] are of the whole tree.
struct ed_sequence {
  int32_t rows, first;
  int32_t n_blocks;     // of `blocks`, ascending; -1: all blocks of the model
  int32_t logits_from;  // the head runs on computed rows logits_from on; -1: nowhere
  int32_t top;          // how many of the best tokens to give for each such row; 0: none
  int32_t n_hidden;     // of `hidden_blocks`
  double temperature;   // of `logsum`; 0: 1
  ed_cache* cache;      // null: no block that keeps a state is run
  const int32_t* blocks;
  const int64_t* tokens;     // [first + rows], or null where `input` is given
  const float* input;        // [rows, hidden]: enters the first block instead of the tokens' embeddings; of a block between
                             // one that enters streams and one that leaves them each row is followed by its streams
  const int64_t* positions;  // [first + rows]
  const int64_t* parents;    // [first + rows], -1: the last committed token; null: a chain
  const int64_t* groups;     // [first + rows], -1: none; null: none
  const int64_t* numbers;    // [first + rows]; null: 0 ..
  const int64_t* types;      // [first + rows], of tokens, where the model has several; null: 0
  float* logits;             // [rows - logits_from, vocab], or null
  int32_t* top_ids;          // [rows - logits_from, top]; -1 where a logit is not finite
  float* top_scores;         // or null
  double* logsum;            // [rows - logits_from]: log of the sum of exp(logit / temperature); or null
  double* entropy;           // [rows - logits_from]: of the distribution at temperature 1, in nats; or null
  const int32_t* hidden_blocks;  // block numbers; -1: the embedding
  float* const* hidden;          // [n_hidden] of [rows, hidden]: the state after that block
  float* const* attention_sums;  // null, or for each of the call's blocks null or [kv_heads, slots]: attention paid to each slot
  const ed_adapter* adapter;
  const float* embeddings;  // [rows, hidden], for blocks that read them; null: those of `tokens`
  const ed_readout* readout;  // null: the whole vocabulary; else no logits and no logsum
  float* const* queries;  // null, or for each of the call's blocks null or [rows, heads, head_dim]: as they score keys
  const ed_view* const* views;  // null, or for each of the call's blocks null or what its rows see of it
  ed_sampler* sampler;  // null, or draws the token after the last row; of one sequence of a call, and no readout
  int32_t* drawn;       // that token; -1: undecided (ed_sampler_draw), and ed_sampler_row has its logits
  double draw_at;       // in [0, 1)
};

struct ed_engine;

ED_API int ed_abi(void);
ED_API const char* ed_isa(void);
ED_API const char* ed_isas(void);
// Null if `isa` (null: the best) does not run here, memory is short, or a block is not supported. The model's arrays
// must outlive it.
ED_API ed_engine* ed_open(const ed_model* model, int threads, const char* isa);
ED_API void ed_close(ed_engine* engine);
ED_API const char* ed_engine_isa(const ed_engine* engine);
// 0, or an error of the call: see ERRORS in __init__.py. Concurrent calls are serialized.
ED_API int ed_run(ed_engine* engine, const ed_sequence* sequences, int n);
// Frees the working memory, which has the size of the largest call so far; during a call, at its end. The
// next call allocates it again.
ED_API void ed_trim(ed_engine* engine);

// ---- sampling ----------------------------------------------------------------------------------

// top_k 0, top_p 1, min_p 0: not cut; temperature 0: the largest. Bias of n_bias tokens of the vocabulary.
struct ed_sampling {
  double temperature, top_p, min_p, repetition, presence, frequency;
  int32_t top_k, n_bias;
  const int32_t* bias_ids;
  const float* bias;
};

// Draws the tokens of one text. Not for two threads at once.
ED_API ed_sampler* ed_sampler_new(const ed_sampling* asked, int vocab);
ED_API void ed_sampler_free(ed_sampler* sampler);
// 0; -1: not enough memory. The tokens of the text, the first `prompt` of which were given; one more that was generated.
ED_API int ed_sampler_read(ed_sampler* sampler, const int64_t* ids, int n, int prompt);
ED_API int ed_sampler_accept(ed_sampler* sampler, int64_t id);
// The token at u in [0, 1) of the distribution that follows the text and then `path`; -1: within rounding of a border,
// or the logits [vocab] are not finite.
ED_API int ed_sampler_draw(ed_sampler* sampler, const float* logits, const int64_t* path, int n_path, double u);
// The logits [vocab] of the last row of a call that it did not decide; null: there was none.
ED_API const float* ed_sampler_row(const ed_sampler* sampler);

// ---- decoding ----------------------------------------------------------------------------------

// The decoding steps of one generation: the calls of its last token and of drafts below it, the choice of the tokens that
// follow, and their rows' commits. Not for two threads at once.
struct ed_step;

// The next number of a stream, in [0, 1).
typedef double ed_random(void* state);

// All that it points to must outlive it.
struct ed_step_settings {
  ed_cache* cache;
  ed_sampler* sampler;        // null: the token of the largest logit is taken
  const ed_adapter* adapter;  // or null
  ed_random* random;          // the text's stream; null: every draw is at 0
  void* random_state;
  const int64_t* ends;  // [n_ends]: tokens that end the text
  int32_t n_ends, vocab;
};

// What the last run chose. undecided: the row after the last of `picked` has a token that the sampler does not decide
// (ed_sampler_draw), and ed_sampler_row has its logits.
struct ed_step_result {
  const int64_t *path, *picked;  // [accepted]: the accepted rows, 0 first, and the token that follows each; -1: none, it
                                 // would follow an end
  int64_t numbers;               // random numbers that were drawn, by all runs
  double at;                     // the last one
  int32_t accepted, undecided;
};

// Null: not enough memory.
ED_API ed_step* ed_step_new(const ed_step_settings* settings);
ED_API void ed_step_free(ed_step* step);
ED_API const ed_step_result* ed_step_results(const ed_step* step);
// The next runs begin with this token, the last of the text, the only one that is not cached.
ED_API void ed_step_start(ed_step* step, int64_t token);
// The next run is of this tree: the text's last token and a draft below it. The arrays of `rows` (tokens, positions,
// parents; top_ids and top_scores, if top > 0, which it is without a sampler) are used until all tokens are decided,
// nothing else of it.
ED_API void ed_step_draft(ed_step* step, const ed_sequence* rows);
// One forward of several steps and other calls. One argument: after a forward nothing is in the caches, and Python's
// conversion of each argument takes microseconds.
struct ed_steps {
  ed_engine* engine;
  ed_step* const* steps;      // [n]
  const ed_sequence* others;  // [n_others]
  int32_t* tokens;            // [n]: the first token that each step chose; -1: undecided, -2: not enough memory
  double seconds, spent;      // of the forward; of governed steps, deciding and learning
  int64_t rows, cells;        // in it, drafted ones among them, and the cached tokens that they read
  int32_t n, n_others;
  int32_t drafts;  // governed steps that had one; spent and drafts are without steps that are undecided
};

// The status of ed_run. Unless it is 0 nothing has changed, and the numbers that were drawn are used by the next run. Of
// a step that is decided the first row is committed; the caller commits the others, each when the token before it has been
// delivered.
ED_API int ed_steps_run(ed_steps* run);
// Goes on with a token that was not decided: 0, or an error of ed_cache_commit.
ED_API int ed_step_decide(ed_step* step, int64_t token);

// ---- drafting ----------------------------------------------------------------------------------

// Status codes of the functions in this part: 0, or the error.
#define ED_DRAFT_MEMORY -1
#define ED_DRAFT_REFUSED -2

// kind 0: copy (ngram 1 to 8, length), 1: suffix, 2: recycling (nodes, k), 3: trigram (nodes, k, rate, explore), 4: stand
// (nodes, k), 5: datastore (ngram 1 to 12: the shortest match). vocab: tokens are from 0 to vocab - 1.
struct ed_drafter_options {
  int32_t kind, vocab, nodes, k, ngram, length;
  double rate, explore;
};

// Proposes tokens from its tables; drafts do not change the text. Not for two threads at once;
// drafters that share tables count as one.
struct ed_drafter;

// Null: options that cannot be, or no memory.
ED_API ed_drafter* ed_drafter_new(const ed_drafter_options* options);
ED_API void ed_drafter_free(ed_drafter* drafter);
// A fork with the same tables for another text; tables are copied on write.
ED_API ed_drafter* ed_drafter_fork(const ed_drafter* drafter);
// Shares the tables of `owner`, a drafter of the same kind and k, from now on.
ED_API int ed_drafter_share(ed_drafter* drafter, ed_drafter* owner);
// copy: tokens, edits, replacements so far; datastore: lookups, those that found something; else entries of table 0, 1.
ED_API int64_t ed_drafter_figure(const ed_drafter* drafter, int what);
// The rows of table `part` (trigram: pairs, tokens; stand 1: its record, in p), oldest first: keys [n], ids, p [n, k],
// visits [n]. To load is to replace, parts in order; values are checked by the caller.
ED_API int ed_drafter_save(const ed_drafter* drafter, int part, int64_t* keys, int32_t* ids, float* p, int32_t* visits);
ED_API int ed_drafter_load(ed_drafter* drafter, int part, int n, const int64_t* keys, const int32_t* ids,
                           const float* p, const int32_t* visits);
// Documents for a datastore, a segment after another: n tokens, last first, -1 after each document, and their suffix
// array, places in the order of the 12 tokens from there on. Both outlive it and its forks.
ED_API int ed_drafter_index(ed_drafter* drafter, const int32_t* tokens, const int32_t* order, int64_t n);

// A verified call: a tree of rows, of which `root` is the last known token and the later ones are drafted.
struct ed_verified {
  const int64_t *tokens, *parents;  // [rows]
  const int32_t* top_ids;           // [rows - root, top], best first; -1: a logit is not finite; or null
  const float* top_scores;          // [rows - root, top]
  const int64_t* picked;            // [accepted]: what followed each accepted row
  const int64_t* path;              // [accepted]: those rows, from the root on, which is 0
  int32_t rows, root, top, accepted;
};

// How often guesses of each kind were accepted: [ED_DRAFT_KINDS] each. estimates: hits and the claim itself, as one.
#define ED_DRAFT_KINDS 24
struct ed_calibration {
  double *hits, *tests, *estimates;
};

// One text: the trees of its drafters, merged. The drafters must outlive it.
struct ed_drafting;

// Inputs and outputs of `ed_drafting_propose`.
struct ed_proposal {
  const int32_t* more;              // [n_more]: what came to the text
  const ed_calibration* estimates;  // [drafters]
  double* seconds;                  // [drafters]: what each one took
  double least;                     // no path less likely than this
  int32_t n_more, prompt, nodes;    // the text's given tokens; the most that each drafter proposes
  uint32_t enabled;                 // drafters by bit
};

// Inputs and outputs of `ed_drafting_watch`: costs of calls, and the number of nodes of the tree that would
// pay in a call of one sequence (0: none). first: the least chance of the likeliest node; trust: a factor on
// chances.
struct ed_watch {
  const double* seconds;  // [most + 1], by rows
  double text, each;      // what the cached tokens add to the call, and to it for each further row
  double trust, first;
  int32_t most, nodes;
};

// The merged tree, the `room` nodes of it that fit. `order`: nodes by chance, parents first; `by`: the drafters that
// proposed a node, by bit.
struct ed_draft_tree {
  int32_t *tokens, *parents, *order, *by;
  double *p, *chances;
  int32_t room, n;
};

// Null among `drafters`: its trees come by `ed_drafting_add`.
ED_API ed_drafting* ed_drafting_new(ed_drafter* const* drafters, int n);
ED_API void ed_drafting_free(ed_drafting* drafting);
// Starts another text. The tables about the model are kept.
ED_API void ed_drafting_reset(ed_drafting* drafting);
// The number of tokens of the text read so far.
ED_API int ed_drafting_read(const ed_drafting* drafting);
// Reads the text and merges the trees of the drafters that are enabled.
ED_API int ed_drafting_propose(ed_drafting* drafting, const ed_proposal* asked, ed_draft_tree* tree);
// Reads the text, scores the tree of the last watch against the new tokens, and makes the next tree.
ED_API int ed_drafting_watch(ed_drafting* drafting, const ed_proposal* asked, ed_watch* watch);
// One drafter's tree alone, its claims in tree->p.
ED_API int ed_drafting_propose_one(ed_drafting* drafting, int number, const ed_proposal* asked, ed_draft_tree* tree);
// Updates the enabled drafters with a call; seconds [drafters]: what each one took.
ED_API int ed_drafting_observe(ed_drafting* drafting, const ed_verified* seen, uint32_t enabled, double* seconds);

// Merges one more tree, of any drafter: `places` [n] are the nodes of its tokens. claims null: unknown.
ED_API int ed_drafting_add(ed_drafting* drafting, int number, int n, const int32_t* tokens, const int32_t* parents,
                           const double* claims, const double* estimates, int32_t* places);
ED_API void ed_drafting_clear(ed_drafting* drafting);
// The tree so far; `chain`: in `order` only the likeliest child of each. Returns how many are in `order`.
ED_API int ed_drafting_tree(ed_drafting* drafting, int chain, ed_draft_tree* tree);
// Of the tree so far only these n nodes, parents among them: `tree` takes them ascending, parents numbered among them.
ED_API int ed_drafting_cut(const ed_drafting* drafting, const int32_t* nodes, int n, ed_draft_tree* tree);
// Updates the calibrations of the drafters (null: none) by every guess whose parent was accepted; path [n]
// takes the accepted nodes. Returns how many.
ED_API int ed_drafting_test(ed_drafting* drafting, const int64_t* picked, int n, const ed_calibration* calibrations,
                            int32_t* path);

// Follows the target's choices through a tree: choices [.. * stride] is the token picked after each row from the root
// on. Writes the accepted rows, the root first, and what follows each; returns how many, 0: a choice is negative.
ED_API int ed_walk(const int64_t* tokens, const int64_t* parents, int rows, int root, const int32_t* choices, int stride,
                   int64_t* path, int64_t* picked);

// ---- this host ---------------------------------------------------------------------------------

// Peak rates of this host: bytes read from memory, GB/s; int8 multiply-adds from registers, 10^9/s.
ED_API double ed_probe_read(uint64_t bytes, int threads);
ED_API double ed_probe_int8(const char* isa, int threads);

// ---- governed steps ----------------------------------------------------------------------------

// Steps that draft by themselves: a governor decides at each call whether a text's table drafters propose, and
// how many guesses run (edgedec/speculation/governor.py). Python reads and writes all of it between runs.

// Running means of proposals, over n of them.
struct ed_means {
  double seconds, tokens, rows;
  int64_t n;
};

// Of all texts of a thread, besides the means: their calls, before how many of these none is tried, the next such wait.
struct ed_experience {
  ed_means means;
  int64_t calls, until, wait;
};

// Of one text: its means, the seconds that are not in them yet, and those of display; the calls to wait, the next wait,
// and how often it was asked.
struct ed_record {
  ed_means own;
  double took, seconds;
  int64_t wait, next, asked;
};

// The balance (edgedec/speculation/bank.py).
struct ed_bank {
  double rate, most, left, saved, lost, call, expected, accepted;
  int64_t opened;
};

// The gains that a text may risk itself.
struct ed_account {
  double own;
};

#define ED_DRAFTED 64  // the most drafted rows of a step
// Why a step has no draft: no drafter was to be asked, the balance, no guess, guesses that do not pay, no room.
enum { ED_WAITING, ED_SHORT, ED_NO_GUESS, ED_REFUSED, ED_NO_ROOM, ED_REASONS };

struct ed_governor {
  ed_drafting* drafting;
  const ed_calibration* calibrations;  // [drafters]
  double* drafter_seconds;             // [drafters]: of the last proposal or update
  int64_t *proposed, *accepted;        // [drafters]: guesses that ran, and came true
  ed_bank* bank;
  ed_account* account;
  ed_record* record;  // of all its drafters together
  ed_experience* shared;
  const double* seconds;  // [most + 1]: of calls, by rows
  // Seconds: a cached token's; outside of calls, a token's and a draft's. least: no path less likely. took: null, or what
  // the next decision and what is learned after it take instead of the measured times.
  double per_cell, plain, draft, least;
  const double* took;
  int64_t left, length;  // tokens that may still come; the text's length at the last decision
  uint32_t enabled;
  // sequences: of the call; limit: the most drafted rows that could pay; top: how many best tokens the drafters learn from;
  // prompt: given tokens; named: the user named the drafters; largest: rows of a call; capacity: of the cache; after, ties:
  // if no further texts come, the texts that end after this one, and those that end with it; ties 0: further texts come.
  int32_t most, sequences, limit, top, prompt, named, largest, capacity, after, ties;
  // Of all its steps so far: seconds of deciding and learning; steps; guesses that ran and that came true; steps with as
  // many guesses; steps without, by reason.
  double spent;
  double expected;  // what the guesses that were refused last would have brought, relative to what their rows cost
  int64_t steps, drafted, came;
  int64_t *sizes, *silent;  // [ED_DRAFTED + 1], [ED_REASONS]
};

// The next runs after ed_step_start are governed, until its next call. `more`: [n] the tokens of the text that the drafters
// have not read. 0, or -1: not enough memory.
ED_API int ed_step_govern(ed_step* step, ed_governor* governor, const int32_t* more, int n);
// The drafters of a row of the last run, by bit; 0: none.
ED_API int32_t ed_step_by(const ed_step* step, int row);
