//! llguidance as a WebAssembly module: what kernels/wasm/llguidance.cpp asks of it, by numbers and addresses in this
//! module's memory. The host (runtimes/web/constraints.js) copies what they point to.

use std::ffi::{c_char, c_void};
use std::ptr::null;

use llguidance::api::ParserLimits;
use llguidance::ffi::*;

#[link(wasm_import_module = "edgedec")]
extern "C" {
    /// The tokens of a text, by the engine's tokenizer.
    fn tokens(bytes: *const u8, size: usize, out: *mut u32, room: usize) -> usize;
}

extern "C" fn tokenize(_: *const c_void, bytes: *const u8, size: usize, out: *mut u32, room: usize) -> usize {
    unsafe { tokens(bytes, size, out, room) }
}

/// Memory for the host, which gives it back by `release` with the same size.
#[no_mangle]
pub extern "C" fn take(size: usize) -> *mut u64 {
    Box::into_raw(vec![0u64; size / 8 + 1].into_boxed_slice()).cast()
}

/// # Safety
/// Of `take` with this size.
#[no_mangle]
pub unsafe extern "C" fn release(at: *mut u64, size: usize) {
    drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(at, size / 8 + 1)));
}

/// A model's tokens; null, and a line in `why`, if no constraint can follow them. `ends`: one or more.
///
/// # Safety
/// `json` and what is written to `why` end with 0.
#[no_mangle]
pub unsafe extern "C" fn vocabulary(
    json: *const c_char,
    n: u32,
    ends: *const u32,
    n_ends: u32,
    why: *mut c_char,
    room: usize,
) -> *mut LlgTokenizer {
    let init = LlgTokenizerInitV2 {
        struct_size: size_of::<LlgTokenizerInitV2>(),
        vocab_size: n,
        tok_eos: *ends,
        token_lens: null(),
        token_bytes: null(),
        tokenizer_json: json,
        tokenize_assumes_string: true,
        tokenize_fn: Some(tokenize),
        use_approximate_greedy_tokenize_fn: false,
        tokenize_user_data: null(),
        slices: null(),
        tok_eos_extra: ends.add(1),
        tok_eos_extra_count: n_ends - 1,
    };
    llg_new_tokenizer_v2(&init, why, room)
}

/// # Safety
/// `kind` and `text` end with 0.
#[no_mangle]
pub unsafe extern "C" fn matcher(
    vocabulary: *const LlgTokenizer,
    kind: *const c_char,
    text: *const c_char,
    first: u64,
    step: u64,
) -> *mut LlgMatcher {
    let init = LlgConstraintInit {
        tokenizer: vocabulary,
        log_buffer_level: 0,
        log_stderr_level: 0,
        ff_tokens_ok: false,
        backtrack_ok: false,
        limits: ParserLimits { initial_lexer_fuel: first, step_lexer_fuel: step, ..ParserLimits::default() },
    };
    llg_new_matcher(&init, kind, text)
}

/// One bit a token: may it follow? Null if that cannot be said.
#[no_mangle]
pub extern "C" fn mask(matcher: &mut LlgMatcher) -> *const u32 {
    if llg_matcher_compute_mask(matcher) != 0 {
        return null();
    }
    llg_matcher_get_mask(matcher)
}

/// Questions by number, as in kernels/wasm/llguidance.cpp.
///
/// # Safety
/// A matcher of `matcher`.
#[no_mangle]
pub unsafe extern "C" fn ask(matcher: &mut LlgMatcher, what: i32, argument: u32) -> i32 {
    match what {
        0 => llg_matcher_is_error(matcher).into(),
        1 => llg_matcher_is_stopped(matcher).into(),
        2 => llg_matcher_is_accepting(matcher).into(),
        3 => llg_matcher_rollback(matcher, argument as usize),
        4 => llg_matcher_validate_tokens(matcher, &argument, 1),
        5 => llg_matcher_consume_token(matcher, argument),
        _ => -1,
    }
}

/// What went wrong, ending with 0; null: nothing.
#[no_mangle]
pub extern "C" fn why(matcher: &mut LlgMatcher) -> *const c_char {
    llg_matcher_get_error(matcher)
}

/// # Safety
/// Of `vocabulary` and `matcher`, or null.
#[no_mangle]
pub unsafe extern "C" fn discard(vocabulary: *mut LlgTokenizer, matcher: *mut LlgMatcher) {
    llg_free_tokenizer(vocabulary);
    llg_free_matcher(matcher);
}
