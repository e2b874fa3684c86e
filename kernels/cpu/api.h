// The C interface of the CPU engine; kernels/cpu/__init__.py mirrors it. ABI counts its changes.
#pragma once
#include <stdint.h>

#define ED_ABI 6

#if defined(_WIN32)
#define ED_API extern "C" __declspec(dllexport)
#else
#define ED_API extern "C" __attribute__((visibility("default")))
#endif

// ---- the model ---------------------------------------------------------------------------------

// A weight: `format`, `layout` and `zeros` (or null) as in kernels.h; format 0: there is none.
struct ed_tensor {
  int32_t format, layout, n, k, block, reserved;
  const void *data, *scales, *zeros;
};

// kind 0: none, 1: rms, 2: layer. `bias` may be null.
struct ed_norm {
  int32_t kind, reserved;
  const float *weight, *bias;
};

struct ed_attention {
  int32_t heads, kv_heads, head_dim, rope, window, sinks, qk_norm, reserved;  // rope -1: none; window 0: none
  float scale, softcap;                                                       // qk_norm 0: none, 1: by head, 2: full
  ed_tensor qkv, o;
  const float *qkv_bias, *o_bias, *q_norm, *k_norm;
  ed_norm embedding_norm;  // kind above 0: qkv is [.., 2 hidden] and reads the normed embedding, then the normed state
};

// gated: up is [2 inner, hidden], the gate first; else [inner, hidden].
struct ed_mlp {
  int32_t inner, gated, activation, reserved;
  ed_tensor up, down;
  const float *up_bias, *down_bias;
};

// Expert e: rows e * 2 inner .. of gate_up, rows e * hidden .. of down. router 0: softmax over all, then the top_k
// largest; 1: softmax over the top_k largest logits; 2: sigmoid, where the choice adds router_bias and the weight does not.
struct ed_moe {
  int32_t experts, top_k, inner, activation, router, normalize, shared_inner, reserved;
  float scale;
  int32_t reserved2;
  ed_tensor router_weight, gate_up, down, shared_gate_up, shared_down, shared_gate;
  const float* router_bias;
};

struct ed_ssm {
  int32_t heads, head_dim, state_size, groups, conv_size, norm_groups;
  float dt_min, dt_max;
  ed_tensor in_proj, out_proj;
  const float *in_proj_bias, *out_proj_bias, *conv, *conv_bias, *dt_bias, *a, *d, *gate_norm;
};

// kind: 1 attention, 2 mlp, 3 moe, 4 ssm; the pointer of that kind is set, the others are null.
struct ed_block {
  int32_t kind, reserved;
  ed_norm norm, post_norm;
  const ed_attention* attention;
  const ed_mlp* mlp;
  const ed_moe* moe;
  const ed_ssm* ssm;
};

// Tables [positions, pairs].
struct ed_rope {
  const float *cos, *sin;
  int32_t pairs, positions;
};

struct ed_model {
  int32_t vocab, hidden, n_blocks, n_ropes;
  float norm_eps, final_softcap, embed_scale;
  int32_t reserved;
  ed_tensor embed, head;
  ed_norm final_norm;
  const ed_block* blocks;
  const ed_rope* ropes;
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

ED_API ed_cache* ed_cache_new(ed_cache_pool* pool, int capacity);
ED_API void ed_cache_free(ed_cache* cache);
ED_API int ed_cache_length(const ed_cache* cache);
// Another cache with the first `length` committed tokens, or fewer where recurrent blocks keep no such state.
ED_API ed_cache* ed_cache_fork(const ed_cache* cache, int length, int capacity);
// Become a fork of `other`; the capacity stays.
ED_API int ed_cache_adopt(ed_cache* cache, const ed_cache* other, int length);
// Numbers of pending rows, ascending; null: 0 .. n - 1. 0, or why not (ERRORS in __init__.py).
ED_API int ed_cache_commit(ed_cache* cache, const int64_t* rows, int n);
ED_API void ed_cache_rollback(ed_cache* cache);
ED_API int ed_cache_truncate(ed_cache* cache, int length);  // the new length
ED_API int ed_cache_drop(ed_cache* cache, int block, const int64_t* slots, int n);
ED_API int ed_cache_slots(const ed_cache* cache, int block);
ED_API void ed_cache_positions(const ed_cache* cache, int block, int64_t* out);
ED_API void ed_cache_tokens(const ed_cache* cache, int block, int64_t* out);  // index in the text of each slot's token
ED_API int ed_cache_reserve(ed_cache* cache, int rows);  // memory for that many rows after the committed ones
ED_API void ed_cache_pages(const ed_cache* cache, int64_t* held, int64_t* shared);
// The pages of the committed slots of the first attention block: equal numbers are one page. `out` null: only how many.
ED_API int ed_cache_page_ids(const ed_cache* cache, int64_t* out);
ED_API uint64_t ed_cache_bytes(const ed_cache* cache);  // of memory, shared pages included
ED_API uint64_t ed_cache_save_bytes(const ed_cache* cache);
ED_API void ed_cache_save(const ed_cache* cache, uint8_t* out);
ED_API int ed_cache_load(ed_cache* cache, const uint8_t* data, uint64_t size);

// ---- calls -------------------------------------------------------------------------------------

// y += scale * b (a x); a [rank, k], b [n, rank]; rank 0: none.
struct ed_lora {
  int32_t rank;
  float scale;
  const float *a, *b;
};

// [n_blocks, 2]: of each block its first and its last matrix (qkv, o; up, down; in_proj, out_proj; moe: none).
struct ed_adapter {
  const ed_lora* parts;
};

// Rows of the model's head for the best of some tokens: row i of `head` is that of token ids[i], ascending.
struct ed_readout {
  ed_tensor head;
  const int32_t* ids;
};

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
  const float* input;        // [rows, hidden]: enters the first block instead of the tokens' embeddings
  const int64_t* positions;  // [first + rows]
  const int64_t* parents;    // [first + rows], -1: the last committed token; null: a chain
  const int64_t* groups;     // [first + rows], -1: none; null: none
  const int64_t* numbers;    // [first + rows]; null: 0 ..
  float* logits;             // [rows - logits_from, vocab], or null
  int32_t* top_ids;          // [rows - logits_from, top]; -1 where a logit is not finite
  float* top_scores;         // or null
  double* logsum;            // [rows - logits_from]: log of the sum of exp(logit / temperature); or null
  const int32_t* hidden_blocks;  // block numbers; -1: the embedding
  float* const* hidden;          // [n_hidden] of [rows, hidden]: the state after that block
  float* const* attention_sums;  // null, or for each of the call's blocks null or [kv_heads, slots]: attention paid to each slot
  const ed_adapter* adapter;
  const float* embeddings;  // [rows, hidden], for blocks that read them; null: those of `tokens`
  const ed_readout* readout;  // null: the whole vocabulary; else no logits and no logsum
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
// 0, or what is wrong with the call: see ERRORS in __init__.py. Calls from several threads take turns.
ED_API int ed_run(ed_engine* engine, const ed_sequence* sequences, int n);

// ---- sampling ----------------------------------------------------------------------------------

// top_k 0, top_p 1, min_p 0: not cut; temperature 0: the largest. Bias of n_bias tokens of the vocabulary.
struct ed_sampling {
  double temperature, top_p, min_p, repetition, presence, frequency;
  int32_t top_k, n_bias;
  const int32_t* bias_ids;
  const float* bias;
};

// Draws the tokens of one text. Not for two threads at once.
struct ed_sampler;

ED_API ed_sampler* ed_sampler_new(const ed_sampling* asked, int vocab);
ED_API void ed_sampler_free(ed_sampler* sampler);
// 0; -1: not enough memory. The tokens of the text, the first `prompt` of which were given; one more that was generated.
ED_API int ed_sampler_read(ed_sampler* sampler, const int64_t* ids, int n, int prompt);
ED_API int ed_sampler_accept(ed_sampler* sampler, int64_t id);
// The token at u in [0, 1) of the distribution that follows the text and then `path`; -1: within rounding of a border,
// or the logits [vocab] are not finite.
ED_API int ed_sampler_draw(ed_sampler* sampler, const float* logits, const int64_t* path, int n_path, double u);

// ---- this host ---------------------------------------------------------------------------------

// What this host can do: bytes read from memory, GB/s; int8 multiply-adds from registers, 10^9/s.
ED_API double ed_probe_read(uint64_t bytes, int threads);
ED_API double ed_probe_int8(const char* isa, int threads);
