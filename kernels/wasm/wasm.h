/* What the WebAssembly build has besides edgedec.h: memory and files for a host that can pass numbers only, generations
 * that run a forward call at a time, and the layout of structures. */
#pragma once
#include "edgedec.h"

#define EDGEDEC_WASM extern "C" __attribute__((visibility("default"), used))
#define EDGEDEC_WASM_THREADS EDGEDEC_WASM

/* 64-byte aligned memory; null where there is none. */
EDGEDEC_WASM uint8_t* edgedec_alloc(size_t bytes);
EDGEDEC_WASM void edgedec_free(void* memory);

/* Files in memory, which edgedec_open and the like find by their names. `memory` is from edgedec_alloc and is
   owned by the library afterwards. */
EDGEDEC_WASM int edgedec_file_put(const char* path, uint8_t* memory, size_t size);
EDGEDEC_WASM const uint8_t* edgedec_file_data(const char* path);
EDGEDEC_WASM size_t edgedec_file_size(const char* path);
EDGEDEC_WASM void edgedec_file_remove(const char* path);

/* A generation that runs one forward call at a time; it holds its session until it is freed. Options and what
 * they point to must outlive it. Its tokens come to the imported function `edgedec.token`. */
typedef struct edgedec_running edgedec_running;
EDGEDEC_WASM int edgedec_running_new(edgedec_session* session, const int32_t* prompt, int32_t n,
                                     const edgedec_generate_options* options, edgedec_result* result, int32_t number,
                                     edgedec_running** out);
/* One forward call of n generations of one model together. Sets `live` to how many have not ended. A generation that fails
 * ends; its status and the message of the first that failed are kept. */
EDGEDEC_WASM int edgedec_running_advance(edgedec_running* const* all, int32_t n, int32_t* live);
EDGEDEC_WASM int edgedec_running_status(const edgedec_running* running); /* 0; EDGEDEC_... of a failure; -1: goes on */
EDGEDEC_WASM const char* edgedec_running_message(const edgedec_running* running);
EDGEDEC_WASM void edgedec_running_free(edgedec_running* running);

/* In modules with threads: how many helpers there are; a helper's stack and own variables, of so many bytes, and its life on
 * them; that one has ended, which it must not. */
EDGEDEC_WASM_THREADS void edgedec_helpers(int32_t n);
EDGEDEC_WASM_THREADS size_t edgedec_helper_bytes(void);
EDGEDEC_WASM_THREADS void edgedec_helper_begin(void* own); /* with the stack pointer at their end */
EDGEDEC_WASM_THREADS void edgedec_helper_help(int32_t number);
EDGEDEC_WASM_THREADS void edgedec_helper_lost(void);

/* For llguidance, which is in a module of its own: the tokens of a text; returns how many, of which `room` are written. */
EDGEDEC_WASM size_t edgedec_constraint_tokens(const uint8_t* bytes, size_t size, uint32_t* out, size_t room);

/* JSON: of every structure its size and the offset and type of each field. */
EDGEDEC_WASM const char* edgedec_layouts(void);
