// The C interface of the CPU engine; kernels/cpu/__init__.py mirrors it. ABI counts its changes.
#pragma once
#include <stdint.h>

#define ED_ABI 2

#if defined(_WIN32)
#define ED_API extern "C" __declspec(dllexport)
#else
#define ED_API extern "C" __attribute__((visibility("default")))
#endif

// A weight: `format` and `layout` as in kernels.h; format 0: there is none.
struct ed_tensor {
  int32_t format, layout, n, k, block, reserved;
  const void *data, *scales;
};

struct ed_layer {
  ed_tensor qkv, o, gate_up, down;
  const float *attn_norm, *mlp_norm, *attn_post_norm, *mlp_post_norm;
  const float *q_norm, *k_norm, *qkv_bias, *o_bias, *gate_up_bias, *down_bias;
  int32_t rope, window;  // rope -1: none; window 0: none
};

// Tables [positions, pairs].
struct ed_rope {
  const float *cos, *sin;
  int32_t pairs, positions;
};

struct ed_model {
  int32_t vocab, hidden, intermediate, heads, kv_heads, head_dim, n_layers, n_ropes;
  int32_t qk_norm, activation;  // qk_norm 0: none, 1: by head, 2: full
  float norm_eps, attn_scale, attn_softcap, final_softcap, embed_scale;
  int32_t sinks;
  ed_tensor embed, head;
  const float* final_norm;
  const ed_layer* layers;
  const ed_rope* ropes;
};

// The rows of one sequence: rows `row` to `row + rows - 1` of the call. `first` of its rows were run by
// an earlier call. `parents` [first + rows], -1 for the last committed token; null for a chain. Its first `shared`
// slots lie in a cache that is other sequences' as well and only read, slot `shared` is the first of its own.
struct ed_sequence {
  int32_t row, rows, length, first, allocated, kv, shared, shared_allocated;
  uint8_t* cache;  // keys and values [layers, 2, kv_heads, allocated, row bytes]
  const uint8_t* shared_cache;
  const int32_t* parents;
  float* mass;  // null, or [layers, kv_heads, length + first + rows]: attention paid to each slot, added up
};

struct ed_call {
  int32_t rows, n_sequences, n_blocks, head_from;  // the head runs on rows head_from on; -1: nowhere
  const int64_t* tokens;                           // null: `hidden` is given
  float* hidden;                                   // [rows, hidden], in and out; null: not wanted
  const int64_t* positions;
  const ed_sequence* sequences;
  const int32_t* blocks;
  float* logits;  // [rows - head_from, vocab], or null
  int32_t top;    // how many of the best to give for each row; 0: none
  int32_t reserved;
  int32_t* top_ids;   // -1 where a logit is not finite
  float* top_logits;  // or null
};

struct ed_engine;

ED_API int ed_abi(void);
ED_API const char* ed_isa(void);
ED_API const char* ed_isas(void);
ED_API uint64_t ed_kv_row_bytes(int dim, int kv);
// Null if `isa` (null: the best) does not run here or memory is short. The model's arrays must outlive it.
ED_API ed_engine* ed_open(const ed_model* model, int threads, const char* isa);
ED_API void ed_close(ed_engine* engine);
ED_API const char* ed_engine_isa(const ed_engine* engine);
// 0, or what is wrong with the call: see ERRORS in __init__.py. Calls from several threads take turns.
ED_API int ed_run(ed_engine* engine, const ed_call* call);
// What this host can do: bytes read from memory, GB/s; int8 multiply-adds from registers, 10^9/s.
ED_API double ed_probe_read(uint64_t bytes, int threads);
ED_API double ed_probe_int8(const char* isa, int threads);
