/* libedgedec: on-device LLM inference for programs in any language. See docs/c-library.md.
 *
 * - Strings are UTF-8 and end with 0; sizes are in bytes. What a function returns as `const char*` belongs to the library.
 * - Functions that can fail return EDGEDEC_OK or an error; edgedec_last_error() is then one line: what was wrong, where,
 *   what to do. A failed function changes nothing, except where documented.
 * - A model may be used by any number of threads. A session belongs to one thread at a time; only edgedec_cancel() may be
 *   called concurrently. Callbacks run on the thread that made the call, and must not use the session unless
 *   documented.
 * - Structures of options and results begin with `size`. edgedec_..._init(&options, sizeof options) sets it and the
 *   defaults. A later library reads the fields of your header; newer fields keep their defaults.
 */
#ifndef EDGEDEC_H
#define EDGEDEC_H

#include <stddef.h>
#include <stdint.h>

#if defined(EDGEDEC_STATIC)
#define EDGEDEC_API
#elif defined(_WIN32)
#if defined(EDGEDEC_BUILD)
#define EDGEDEC_API __declspec(dllexport)
#else
#define EDGEDEC_API __declspec(dllimport)
#endif
#else
#define EDGEDEC_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Grows when a program that was compiled with an older header would no longer work; new functions and new fields at the end
 * of a structure do not change it. */
#define EDGEDEC_ABI 1

EDGEDEC_API uint32_t edgedec_abi(void);        /* EDGEDEC_ABI of the library */
EDGEDEC_API const char* edgedec_version(void); /* such as "0.1.0" */
EDGEDEC_API const char* edgedec_isa(void);     /* the instruction set in use on this machine, such as "avx512vnni" */

/* ---- errors ------------------------------------------------------------------------------------------------------- */

typedef enum edgedec_status {
  EDGEDEC_OK = 0,
  EDGEDEC_USAGE = 1,       /* an argument out of range */
  EDGEDEC_NOT_FOUND = 2,   /* no bundle or file there */
  EDGEDEC_VERSION = 3,     /* a bundle of another format version */
  EDGEDEC_CORRUPT = 4,     /* truncated, tampered with, or malformed */
  EDGEDEC_UNSAFE = 5,      /* a bundle that reaches out of its folder */
  EDGEDEC_UNAVAILABLE = 6, /* what this build or this machine cannot do */
  EDGEDEC_FULL = 7,        /* the context has no room */
  EDGEDEC_SESSION = 8,     /* a saved session that does not fit */
  EDGEDEC_TEXT = 9,        /* no tokenizer, or one that this library cannot read */
  EDGEDEC_MEMORY = 10,     /* out of memory, or of the memory limit */
  EDGEDEC_IO = 11,         /* a file that cannot be read or written */
  EDGEDEC_CANCELLED = 12,  /* edgedec_cancel(), or a progress callback */
  EDGEDEC_BUSY = 13        /* the session is in use by another thread */
} edgedec_status;

EDGEDEC_API const char* edgedec_status_name(int status); /* such as "corrupt" */
EDGEDEC_API const char* edgedec_last_error(void);        /* of this thread; "" if its last call was well */

/* ---- models ------------------------------------------------------------------------------------------------------- */

typedef struct edgedec_model edgedec_model;
typedef struct edgedec_session edgedec_session;
typedef struct edgedec_adapter edgedec_adapter;

/* How far something is; 0: go on, else it ends with EDGEDEC_CANCELLED. */
typedef int (*edgedec_progress)(void* user, uint64_t done, uint64_t total);
/* Caches need `needed` bytes more than the limit allows. Free unused sessions and return 1 to try again, or
 * return 0. May use other sessions than those of the call. */
typedef int (*edgedec_pressure)(void* user, uint64_t needed);

typedef struct edgedec_open_options {
  size_t size;
  int32_t threads;              /* 0: one a core, fewer for small models */
  int32_t verify;               /* 1: check every hash (reads every byte) */
  const char* kv;               /* cache format "f32", "f16", "int8", "int4"; NULL: the bundle's first */
  const char* isa;              /* an instruction set; NULL: the best */
  int32_t big_cores;            /* 1: threads stay on the fastest cores (Linux, Android) */
  int32_t priority;             /* of the threads, as nice: -20 to 19; 0: as the program's */
  uint64_t memory_limit;        /* bytes of all caches; 0: none */
  edgedec_pressure on_pressure; /* or NULL */
  void* pressure_user;
  edgedec_progress on_progress; /* of checking hashes, which takes the time: all else is mapped; or NULL */
  void* progress_user;
  int32_t prefix_tokens; /* so many tokens of ended texts stay cached for texts that begin with them; 0: none */
  int32_t reserved;
} edgedec_open_options;

EDGEDEC_API void edgedec_open_options_init(edgedec_open_options* options, size_t size);

/* A bundle: a folder, or a file that `edgedec pack` made. options NULL: the defaults. */
EDGEDEC_API int edgedec_open(const char* path, const edgedec_open_options* options, edgedec_model** out);
/* A packed bundle in memory, which must outlive the model; at a multiple of 64 bytes. */
EDGEDEC_API int edgedec_open_memory(const void* data, uint64_t size, const edgedec_open_options* options,
                                    edgedec_model** out);
/* A packed bundle inside an open file, such as an uncompressed asset of an app. The descriptor may be closed afterwards. */
EDGEDEC_API int edgedec_open_fd(int fd, uint64_t offset, uint64_t size, const edgedec_open_options* options,
                                edgedec_model** out);
/* The model is freed with its last session and adapter. NULL: no effect. */
EDGEDEC_API void edgedec_close(edgedec_model* model);

typedef struct edgedec_model_info {
  size_t size;
  int32_t vocab_size, hidden_size, context_length, n_layers, n_blocks, threads;
  int32_t bos; /* -1: none */
  int32_t n_eos;
  int32_t has_text; /* 1: edgedec_encode() and the like work */
  int32_t reserved;
  uint64_t weights_bytes;   /* of the weights file, mapped */
  uint64_t cache_row_bytes; /* of one token in all caches of a session, without recurrent states */
} edgedec_model_info;

EDGEDEC_API int edgedec_info(const edgedec_model* model, edgedec_model_info* info, size_t size);
EDGEDEC_API int edgedec_eos(const edgedec_model* model, int32_t* out, int32_t room); /* how many there are */

typedef enum edgedec_string {
  EDGEDEC_NAME = 0,
  EDGEDEC_ARCHITECTURE = 1,
  EDGEDEC_KV = 2,            /* the cache format */
  EDGEDEC_MODEL_ISA = 3,     /* the instruction set of this model's engine */
  EDGEDEC_DIGEST = 4,        /* sha256 of the manifest */
  EDGEDEC_CHAT_TEMPLATE = 5, /* Jinja; "": none */
  EDGEDEC_BOS_TOKEN = 6,
  EDGEDEC_EOS_TOKEN = 7,
  EDGEDEC_NO_TEXT = 8 /* why has_text is 0; "": it is not */
} edgedec_string;

EDGEDEC_API const char* edgedec_model_string(const edgedec_model* model, int what); /* "" if there is no such one */

typedef struct edgedec_memory_use {
  size_t size;
  uint64_t weights_bytes; /* mapped; the system may drop and read them again */
  uint64_t cache_bytes;   /* of all sessions and prefixes, shared pages once */
  uint64_t prefix_bytes;  /* of them, of prefixes that no session needs */
  uint64_t limit;         /* 0: none */
  int32_t sessions, prefixes;
} edgedec_memory_use;

EDGEDEC_API int edgedec_memory(const edgedec_model* model, edgedec_memory_use* use, size_t size);
/* Frees memory that can be rebuilt: idle prefixes, pages kept for later caches, the working memory of earlier
 * calls. May be called from any thread and does not block: the working memory of a running call is freed at
 * its end. */
EDGEDEC_API int edgedec_trim(edgedec_model* model);

/* A LoRA adapter: a file that `edgedec adapter` made for this model. */
EDGEDEC_API int edgedec_adapter_open(edgedec_model* model, const char* path, edgedec_adapter** out);
EDGEDEC_API void edgedec_adapter_close(edgedec_adapter* adapter); /* freed with its last session */

/* ---- sessions: one text and its cache ----------------------------------------------------------------------------- */

typedef struct edgedec_session_options {
  size_t size;
  int32_t context;           /* how many tokens it may hold; 0: the model's limit */
  int32_t sinks;             /* a full context drops its oldest tokens but so many; -1: it ends the text */
  const char* speculate;     /* drafters: "off", "auto", or of copy, suffix, recycling, trigram some, joined by "+";
                                NULL: "off" */
  int32_t draft;             /* drafted tokens a call; 0: as many as pay */
  int32_t reserved;
  edgedec_adapter* adapter;  /* or NULL */
} edgedec_session_options;

EDGEDEC_API void edgedec_session_options_init(edgedec_session_options* options, size_t size);
EDGEDEC_API int edgedec_session_new(edgedec_model* model, const edgedec_session_options* options, edgedec_session** out);
EDGEDEC_API void edgedec_session_free(edgedec_session* session);
/* An independent session with the same text, whose cache shares its pages. */
EDGEDEC_API int edgedec_session_fork(edgedec_session* session, edgedec_session** out);
/* Text, cache and state of the random numbers; files are the same as those of Python's session.save. Whole or not at all. */
EDGEDEC_API int edgedec_session_save(edgedec_session* session, const char* path);
EDGEDEC_API int edgedec_session_load(edgedec_session* session, const char* path);

EDGEDEC_API int32_t edgedec_session_length(const edgedec_session* session); /* tokens of its text */
EDGEDEC_API int32_t edgedec_session_cached(const edgedec_session* session); /* of which so many are in the cache */
EDGEDEC_API int32_t edgedec_session_context(const edgedec_session* session);
/* Copies tokens `from` on; returns how many. */
EDGEDEC_API int32_t edgedec_session_tokens(const edgedec_session* session, int32_t from, int32_t* out, int32_t room);
EDGEDEC_API int edgedec_session_seed(edgedec_session* session, uint64_t seed);
/* Tokens are added to the text, as part of its prompt; the next call reads them. */
EDGEDEC_API int edgedec_session_append(edgedec_session* session, const int32_t* tokens, int32_t n);
/* Truncates the text. */
EDGEDEC_API int edgedec_session_truncate(edgedec_session* session, int32_t length);

/* From another thread: the call that runs on this session ends soon (after a forward call, or a piece of a prompt) with
 * EDGEDEC_CANCELLED, and keeps the text so far. No effect if no call runs. */
EDGEDEC_API void edgedec_cancel(edgedec_session* session);

/* ---- token by token ----------------------------------------------------------------------------------------------- */

/* Makes `tokens` the text and computes it; a common prefix with the previous text is not computed again.
 * tokens NULL: the text as it is. edgedec_logits() is then of the token after it. */
EDGEDEC_API int edgedec_prefill(edgedec_session* session, const int32_t* tokens, int32_t n);
/* Adds one token to the text and computes it. Allocates only pages of the cache. */
EDGEDEC_API int edgedec_step(edgedec_session* session, int32_t token);
/* The same for n sessions of one model in one forward call, which is faster than one after another. Either all of them
 * or none. */
EDGEDEC_API int edgedec_step_many(edgedec_session* const* sessions, const int32_t* tokens, int32_t n);
/* [vocab_size] of the token that follows, until the next call on the session; NULL if there are none. May be
 * modified. */
EDGEDEC_API float* edgedec_logits(edgedec_session* session);

typedef struct edgedec_sampling {
  size_t size;
  double temperature; /* 0: the likeliest token */
  double top_p, min_p, typical_p;
  double repetition_penalty, presence_penalty, frequency_penalty;
  int32_t top_k;  /* 0: off */
  int32_t n_bias; /* logit_bias: of token bias_tokens[i], bias[i]; -INFINITY forbids it */
  const int32_t* bias_tokens;
  const float* bias;
  uint64_t seed;  /* the tokens that Python draws with it */
  int32_t seeded; /* 0: go on with the session's random numbers; edgedec_sample() always does */
  int32_t reserved;
} edgedec_sampling;

EDGEDEC_API void edgedec_sampling_init(edgedec_sampling* sampling, size_t size); /* greedy */
/* The sampling settings suggested by the model. */
EDGEDEC_API int edgedec_suggested_sampling(const edgedec_model* model, edgedec_sampling* sampling, size_t size);
/* A token of the distribution of edgedec_logits(): one random number, none if greedy. */
EDGEDEC_API int edgedec_sample(edgedec_session* session, const edgedec_sampling* sampling, int32_t* token);
/* The log-probability of each of n tokens after the text and those before it; the text stays as it is. */
EDGEDEC_API int edgedec_score(edgedec_session* session, const int32_t* tokens, int32_t n, double* out);

/* ---- generate ----------------------------------------------------------------------------------------------------- */

typedef struct edgedec_token {
  size_t size;
  int32_t id;      /* -1: only text, which was held back until the end */
  int32_t drafted; /* 1: drafted and accepted */
  const char* text; /* what is certain by now: whole characters, nothing that may become a stop string; "" without text */
  size_t text_bytes;
  double logprob;             /* 0 unless asked for */
  const int32_t* top_tokens;  /* [n_top] likeliest first */
  const double* top_logprobs; /* [n_top] */
  int32_t n_top;
  int32_t reserved;
} edgedec_token;

/* 0: go on; else the generation ends after this token (finish EDGEDEC_STOPPED). */
typedef int (*edgedec_on_token)(void* user, const edgedec_token* token);
/* Changes the logits [vocab_size] of the token after `tokens` before all else. 0, or an error that ends the generation. */
typedef int (*edgedec_on_logits)(void* user, const int32_t* tokens, int32_t n, float* logits);

typedef enum edgedec_finish {
  EDGEDEC_NOT_FINISHED = 0,
  EDGEDEC_EOS = 1,     /* an end token */
  EDGEDEC_STOP = 2,    /* a stop string */
  EDGEDEC_LENGTH = 3,  /* max_tokens */
  EDGEDEC_CONTEXT = 4, /* the context is full */
  EDGEDEC_STOPPED = 5  /* stopped by the callback */
} edgedec_finish;

typedef struct edgedec_generate_options {
  size_t size;
  int32_t max_tokens; /* -1: until the context is full */
  int32_t min_tokens; /* no end before */
  int32_t ignore_eos;
  int32_t logprobs; /* of so many likeliest tokens too; -1: none */
  const int32_t* stop_tokens;
  int32_t n_stop_tokens;
  int32_t n_stop;
  const char* const* stop; /* [n_stop] strings, which are cut out; need has_text */
  int32_t text;            /* 1: callbacks get text; needs has_text */
  int32_t reserved;
  const edgedec_sampling* sampling; /* NULL: greedy */
  edgedec_on_token on_token;        /* or NULL */
  void* token_user;
  edgedec_on_logits on_logits; /* or NULL */
  void* logits_user;
  edgedec_progress on_progress; /* tokens of the prompt that have been read; or NULL */
  void* progress_user;
  const char* constraint;      /* what the text must be; needs a build with llguidance */
  const char* constraint_kind; /* "json_schema", "regex", "lark" */
} edgedec_generate_options;

typedef struct edgedec_result {
  size_t size;
  int32_t finish;              /* edgedec_finish */
  int32_t prompt, cached;      /* tokens; of which so many were not computed again */
  int32_t generated, calls;    /* tokens, forward calls */
  int32_t drafted, accepted;   /* tokens */
  int32_t reserved;
  double prompt_seconds, seconds; /* until the first token, and all */
  double forward_seconds;         /* of them in forward calls */
} edgedec_result;

EDGEDEC_API void edgedec_generate_options_init(edgedec_generate_options* options, size_t size);
/* The tokens that follow `prompt`, which is the whole text; NULL: that of the session. The tokens are those that Python
 * generates. result: or NULL; filled also where an error ends it after some tokens. */
EDGEDEC_API int edgedec_generate(edgedec_session* session, const int32_t* prompt, int32_t n,
                                 const edgedec_generate_options* options, edgedec_result* result);
/* The same, prompt as text, special tokens around it as the model has them. */
EDGEDEC_API int edgedec_generate_text(edgedec_session* session, const char* prompt,
                                      const edgedec_generate_options* options, edgedec_result* result);

/* One of several generations that share their forward calls; the same tokens as each alone. */
typedef struct edgedec_request {
  size_t size;
  edgedec_session* session;
  const int32_t* prompt; /* NULL: the session's text */
  int32_t n;
  int32_t status; /* set: how this one ended */
  const edgedec_generate_options* options;
  edgedec_result* result; /* or NULL */
} edgedec_request;

/* Runs them all to their ends. Returns EDGEDEC_OK unless it could not begin; each one's result is its `status`. */
EDGEDEC_API int edgedec_generate_many(edgedec_request* requests, int32_t n);

/* ---- text --------------------------------------------------------------------------------------------------------- */

enum { EDGEDEC_AROUND = 1, EDGEDEC_SPECIAL = 2 };

/* The tokens of a text of `bytes` bytes (-1: up to its 0). flags: EDGEDEC_AROUND adds the model's special
 * tokens around a text, such as its first token; EDGEDEC_SPECIAL reads special tokens that stand in the text.
 * Returns how many there are, of which `room` are written, or minus an edgedec_status. */
EDGEDEC_API int32_t edgedec_encode(const edgedec_model* model, const char* text, int64_t bytes, int32_t flags,
                                   int32_t* out, int32_t room);
/* The text of n tokens, special tokens left out unless EDGEDEC_SPECIAL. Returns its bytes, of which `room` less one and a 0
 * are written, or minus an edgedec_status. */
EDGEDEC_API int64_t edgedec_decode(const edgedec_model* model, const int32_t* tokens, int32_t n, int32_t flags, char* out,
                                   int64_t room);

#ifdef __cplusplus
}
#endif
#endif
