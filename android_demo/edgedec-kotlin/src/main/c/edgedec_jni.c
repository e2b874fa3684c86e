// The functions of NativeLibrary.kt over edgedec.h. Nothing is kept here but numbers that are addresses.
//
// A callback that throws ends the generation; the exception goes on to the caller.
#include <jni.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "edgedec.h"

#define NATIVE(type, name) JNIEXPORT type JNICALL Java_org_edgedec_engine_NativeLibrary_##name
#define HANDLE(type, number) ((type*)(intptr_t)(number))

static const char* exception_of(int status) {
  switch (status) {
    case EDGEDEC_USAGE:
    case EDGEDEC_BUSY: return "org/edgedec/UsageException";
    case EDGEDEC_NOT_FOUND: return "org/edgedec/NotFoundException";
    case EDGEDEC_VERSION:
    case EDGEDEC_CORRUPT: return "org/edgedec/CorruptException";
    case EDGEDEC_UNSAFE: return "org/edgedec/UnsafeException";
    case EDGEDEC_UNAVAILABLE: return "org/edgedec/UnavailableException";
    case EDGEDEC_FULL: return "org/edgedec/ContextFullException";
    case EDGEDEC_SESSION: return "org/edgedec/SessionException";
    case EDGEDEC_TEXT: return "org/edgedec/TextException";
    case EDGEDEC_CANCELLED: return "org/edgedec/CancelledException";
    case EDGEDEC_MEMORY: return "java/lang/OutOfMemoryError";
    default: return NULL;
  }
}

// A Java string of UTF-8, which NewStringUTF does not take.
static jstring text_of(JNIEnv* env, const char* utf8) {
  jsize n = (jsize)strlen(utf8);
  jbyteArray bytes = (*env)->NewByteArray(env, n);
  if (!bytes) return NULL;
  (*env)->SetByteArrayRegion(env, bytes, 0, n, (const jbyte*)utf8);
  jclass type = (*env)->FindClass(env, "java/lang/String");
  jmethodID make = (*env)->GetMethodID(env, type, "<init>", "([BLjava/lang/String;)V");
  jstring charset = (*env)->NewStringUTF(env, "UTF-8");
  return charset ? (jstring)(*env)->NewObject(env, type, make, bytes, charset) : NULL;
}

static void construct_and_throw(JNIEnv* env, const char* name, jstring message) {
  jclass type = (*env)->FindClass(env, name);
  jmethodID make = type ? (*env)->GetMethodID(env, type, "<init>", "(Ljava/lang/String;)V") : NULL;
  if (!make) {  // EdgedecException has a second parameter
    (*env)->ExceptionClear(env);
    type = (*env)->FindClass(env, name);
    make = (*env)->GetMethodID(env, type, "<init>", "(Ljava/lang/String;Ljava/lang/Throwable;)V");
    (*env)->Throw(env, (jthrowable)(*env)->NewObject(env, type, make, message, NULL));
    return;
  }
  (*env)->Throw(env, (jthrowable)(*env)->NewObject(env, type, make, message));
}

// True if the call went well; else an exception is on its way.
static int went_well(JNIEnv* env, int status) {
  if (status == EDGEDEC_OK) return 1;
  if ((*env)->ExceptionCheck(env)) return 0;  // a callback threw it
  const char* name = exception_of(status);
  jstring message = text_of(env, edgedec_last_error());
  if (message) construct_and_throw(env, name ? name : "org/edgedec/EdgedecException", message);
  return 0;
}

// A copy of bytes that end with 0; NULL for null, or out of memory with an exception.
static char* copied(JNIEnv* env, jbyteArray bytes) {
  if (!bytes) return NULL;
  jsize n = (*env)->GetArrayLength(env, bytes);
  char* out = malloc((size_t)n + 1);
  if (!out) {
    (*env)->ThrowNew(env, (*env)->FindClass(env, "java/lang/OutOfMemoryError"), "text");
    return NULL;
  }
  (*env)->GetByteArrayRegion(env, bytes, 0, n, (jbyte*)out);
  out[n] = 0;
  return out;
}

NATIVE(jint, abi)(JNIEnv* env, jclass type) { return (jint)edgedec_abi(); }

// ---- models --------------------------------------------------------------------------------------

NATIVE(jlong, open)(JNIEnv* env, jclass type, jbyteArray path, jint threads, jbyteArray kv, jboolean big_cores) {
  edgedec_open_options options;
  edgedec_open_options_init(&options, sizeof options);
  char* where = copied(env, path);
  char* format = copied(env, kv);
  edgedec_model* model = NULL;
  if (!(*env)->ExceptionCheck(env)) {
    options.threads = threads;
    options.kv = format;
    options.big_cores = big_cores;
    went_well(env, edgedec_open(where, &options, &model));
  }
  free(where);
  free(format);
  return (jlong)(intptr_t)model;
}

NATIVE(void, close)(JNIEnv* env, jclass type, jlong model) { edgedec_close(HANDLE(edgedec_model, model)); }

NATIVE(jint, threads)(JNIEnv* env, jclass type, jlong model) {
  edgedec_model_info info;
  memset(&info, 0, sizeof info);
  return went_well(env, edgedec_info(HANDLE(edgedec_model, model), &info, sizeof info)) ? info.threads : 0;
}

NATIVE(jbyteArray, modelBytes)(JNIEnv* env, jclass type, jlong model, jint what) {
  const char* text = edgedec_model_string(HANDLE(edgedec_model, model), what);
  jsize n = (jsize)strlen(text);
  jbyteArray out = (*env)->NewByteArray(env, n);
  if (out) (*env)->SetByteArrayRegion(env, out, 0, n, (const jbyte*)text);
  return out;
}

NATIVE(void, trim)(JNIEnv* env, jclass type, jlong model) { went_well(env, edgedec_trim(HANDLE(edgedec_model, model))); }

NATIVE(jintArray, encode)(JNIEnv* env, jclass type, jlong model, jbyteArray text, jint flags) {
  char* utf8 = copied(env, text);
  if (!utf8) return NULL;
  int64_t bytes = (*env)->GetArrayLength(env, text);
  int32_t n = edgedec_encode(HANDLE(edgedec_model, model), utf8, bytes, flags, NULL, 0);
  int32_t* ids = n < 0 ? NULL : malloc(((size_t)n + 1) * sizeof *ids);
  jintArray out = NULL;
  if (n < 0) {
    went_well(env, -n);
  } else if (ids) {
    edgedec_encode(HANDLE(edgedec_model, model), utf8, bytes, flags, ids, n);
    out = (*env)->NewIntArray(env, n);
    if (out) (*env)->SetIntArrayRegion(env, out, 0, n, (const jint*)ids);
  }
  free(ids);
  free(utf8);
  return out;
}

// ---- sessions ------------------------------------------------------------------------------------

NATIVE(jlong, newSession)(JNIEnv* env, jclass type, jlong model, jint context, jbyteArray drafters) {
  edgedec_session_options options;
  edgedec_session_options_init(&options, sizeof options);
  char* names = copied(env, drafters);
  if (!names) return 0;
  options.context = context;
  options.speculate = names;
  edgedec_session* session = NULL;
  went_well(env, edgedec_session_new(HANDLE(edgedec_model, model), &options, &session));
  free(names);
  return (jlong)(intptr_t)session;
}

NATIVE(void, free)(JNIEnv* env, jclass type, jlong session) { edgedec_session_free(HANDLE(edgedec_session, session)); }

NATIVE(jlong, fork)(JNIEnv* env, jclass type, jlong session) {
  edgedec_session* twin = NULL;
  went_well(env, edgedec_session_fork(HANDLE(edgedec_session, session), &twin));
  return (jlong)(intptr_t)twin;
}

NATIVE(jint, context)(JNIEnv* env, jclass type, jlong session) {
  return edgedec_session_context(HANDLE(edgedec_session, session));
}

NATIVE(jint, length)(JNIEnv* env, jclass type, jlong session) {
  return edgedec_session_length(HANDLE(edgedec_session, session));
}

NATIVE(jintArray, tokens)(JNIEnv* env, jclass type, jlong session) {
  int32_t n = edgedec_session_length(HANDLE(edgedec_session, session));
  int32_t* ids = malloc(((size_t)n + 1) * sizeof *ids);
  jintArray out = ids ? (*env)->NewIntArray(env, n) : NULL;
  if (out) {
    edgedec_session_tokens(HANDLE(edgedec_session, session), 0, ids, n);
    (*env)->SetIntArrayRegion(env, out, 0, n, (const jint*)ids);
  }
  free(ids);
  return out;
}

NATIVE(void, truncate)(JNIEnv* env, jclass type, jlong session, jint length) {
  went_well(env, edgedec_session_truncate(HANDLE(edgedec_session, session), length));
}

NATIVE(void, cancel)(JNIEnv* env, jclass type, jlong session) { edgedec_cancel(HANDLE(edgedec_session, session)); }

NATIVE(void, save)(JNIEnv* env, jclass type, jlong session, jbyteArray path) {
  char* where = copied(env, path);
  if (where) went_well(env, edgedec_session_save(HANDLE(edgedec_session, session), where));
  free(where);
}

NATIVE(void, load)(JNIEnv* env, jclass type, jlong session, jbyteArray path) {
  char* where = copied(env, path);
  if (where) went_well(env, edgedec_session_load(HANDLE(edgedec_session, session), where));
  free(where);
}

// ---- generate ------------------------------------------------------------------------------------

typedef struct {
  JNIEnv* env;
  jobject sink;
  jmethodID accept, prompt;
} sink_of;

static int on_token(void* user, const edgedec_token* token) {
  sink_of* to = user;
  if (token->id < 0) return 0;
  jboolean more = (*to->env)->CallBooleanMethod(to->env, to->sink, to->accept, (jint)token->id, (jboolean)(token->drafted != 0));
  return (*to->env)->ExceptionCheck(to->env) || !more;
}

static int on_progress(void* user, uint64_t done, uint64_t total) {
  sink_of* to = user;
  jint n = (jint)(done < INT_MAX ? done : INT_MAX), all = (jint)(total < INT_MAX ? total : INT_MAX);
  jboolean more = (*to->env)->CallBooleanMethod(to->env, to->sink, to->prompt, n, all);
  return (*to->env)->ExceptionCheck(to->env) || !more;
}

// The numbers of an array of Java, to be given back; NULL for null.
static jint* ints_of(JNIEnv* env, jintArray from) { return from ? (*env)->GetIntArrayElements(env, from, NULL) : NULL; }

static void give_back(JNIEnv* env, jintArray from, jint* ints) {
  if (ints) (*env)->ReleaseIntArrayElements(env, from, ints, JNI_ABORT);
}

static void set_sampling(edgedec_sampling* s, const jint* ints, const jdouble* reals, jlong seed) {
  s->top_k = ints[3];
  s->seeded = ints[4];
  s->seed = (uint64_t)seed;
  s->temperature = reals[0];
  s->top_p = reals[1];
  s->min_p = reals[2];
  s->typical_p = reals[3];
  s->repetition_penalty = reals[4];
  s->presence_penalty = reals[5];
  s->frequency_penalty = reals[6];
}

static jdoubleArray figures(JNIEnv* env, const edgedec_result* r) {
  const jdouble values[] = {r->finish, r->prompt, r->cached, r->generated, r->calls, r->drafted, r->accepted, r->prompt_seconds, r->seconds};
  const jsize n = sizeof values / sizeof *values;
  jdoubleArray out = (*env)->NewDoubleArray(env, n);
  if (out) (*env)->SetDoubleArrayRegion(env, out, 0, n, values);
  return out;
}

NATIVE(jdoubleArray, generate)
(JNIEnv* env, jclass type, jlong session, jintArray prompt, jintArray ints, jdoubleArray reals, jlong seed, jintArray stop_tokens,
 jintArray bias_tokens, jfloatArray bias, jobject sink) {
  jclass sinks = (*env)->GetObjectClass(env, sink);
  sink_of to = {env, sink, (*env)->GetMethodID(env, sinks, "accept", "(IZ)Z"), (*env)->GetMethodID(env, sinks, "prompt", "(II)Z")};
  jint numbers[5];
  jdouble settings[7];
  (*env)->GetIntArrayRegion(env, ints, 0, 5, numbers);
  (*env)->GetDoubleArrayRegion(env, reals, 0, 7, settings);
  if ((*env)->ExceptionCheck(env)) return NULL;
  edgedec_generate_options options;
  edgedec_generate_options_init(&options, sizeof options);
  edgedec_sampling sampling;
  edgedec_sampling_init(&sampling, sizeof sampling);
  set_sampling(&sampling, numbers, settings, seed);
  options.sampling = &sampling;
  options.max_tokens = numbers[0];
  options.min_tokens = numbers[1];
  options.ignore_eos = numbers[2];
  options.on_token = on_token;
  options.on_progress = on_progress;
  options.token_user = options.progress_user = &to;
  jint *tokens = ints_of(env, prompt), *stops = ints_of(env, stop_tokens), *biased = ints_of(env, bias_tokens);
  jfloat* by = (*env)->GetFloatArrayElements(env, bias, NULL);
  jdoubleArray out = NULL;
  if ((!prompt || tokens) && stops && biased && by) {
    options.stop_tokens = stops;
    options.n_stop_tokens = (*env)->GetArrayLength(env, stop_tokens);
    sampling.bias_tokens = biased;
    sampling.bias = by;
    sampling.n_bias = (*env)->GetArrayLength(env, bias_tokens);
    edgedec_result result;
    memset(&result, 0, sizeof result);
    result.size = sizeof result;
    int status = edgedec_generate(HANDLE(edgedec_session, session), tokens, prompt ? (*env)->GetArrayLength(env, prompt) : 0, &options, &result);
    if (!(*env)->ExceptionCheck(env) && went_well(env, status)) out = figures(env, &result);
  }
  give_back(env, prompt, tokens);
  give_back(env, stop_tokens, stops);
  give_back(env, bias_tokens, biased);
  if (by) (*env)->ReleaseFloatArrayElements(env, bias, by, JNI_ABORT);
  return out;
}
