package org.edgedec

/**
 * How the next token is chosen; the defaults are greedy. The same fields, order and meaning as Python's `Sampling`, and for
 * a seed the same tokens.
 */
data class Sampling @JvmOverloads constructor(
    val temperature: Double = 0.0,
    val topK: Int = 0,
    val topP: Double = 1.0,
    val minP: Double = 0.0,
    val typicalP: Double = 1.0,
    val repetitionPenalty: Double = 1.0,
    val presencePenalty: Double = 0.0,
    val frequencyPenalty: Double = 0.0,
    val logitBias: Map<Int, Float> = emptyMap(),
    val seed: Long? = null,
) {
    init {
        check("temperature", temperature, temperature >= 0 && temperature.isFinite(), "[0, inf)")
        check("topK", topK, topK >= 0, "0 or more")
        check("topP", topP, topP > 0 && topP <= 1, "(0, 1]")
        check("minP", minP, minP in 0.0..1.0, "[0, 1]")
        check("typicalP", typicalP, typicalP > 0 && typicalP <= 1, "(0, 1]")
        check("repetitionPenalty", repetitionPenalty, repetitionPenalty > 0 && repetitionPenalty.isFinite(), "(0, inf)")
        check("presencePenalty", presencePenalty, presencePenalty in -2.0..2.0, "[-2, 2]")
        check("frequencyPenalty", frequencyPenalty, frequencyPenalty in -2.0..2.0, "[-2, 2]")
        check("seed", seed, seed == null || seed >= 0, "0 or more")
        check("logitBias", logitBias, logitBias.all { (id, b) -> id >= 0 && b < Float.POSITIVE_INFINITY }, "[-inf, inf)")
    }

    /** Whether logits are changed before a token is chosen. */
    val adjusts: Boolean
        get() = logitBias.isNotEmpty() || repetitionPenalty != 1.0 || presencePenalty != 0.0 || frequencyPenalty != 0.0
}

/** Where drafted tokens come from. Drafts change no token, only how many a forward call gives. */
enum class Drafts(val drafters: String) {
    OFF("off"),

    /** From the text itself: the continuation of an earlier occurrence of the last tokens. */
    COPY("copy"),

    /** All table drafters of the engine, as many tokens as pay (native engine; others: [COPY]). */
    AUTO("auto"),
}

/** One generation. [maxTokens] null: until the context is full. [stop]: texts that end it and are cut out. */
data class GenerateOptions @JvmOverloads constructor(
    val maxTokens: Int? = null,
    val minTokens: Int = 0,
    val stop: List<String> = emptyList(),
    val stopTokens: Set<Int> = emptySet(),
    val ignoreEos: Boolean = false,
    val sampling: Sampling = Sampling(),
) {
    init {
        check("maxTokens", maxTokens, maxTokens == null || maxTokens >= 0, "0 or more, or null")
        check("minTokens", minTokens, minTokens >= 0, "0 or more")
        check("stop", stop, stop.none { it.isEmpty() }, "texts that are not empty")
    }
}

/**
 * How a bundle is opened. [engine]: "native", "ort", or null for the first that can. [threads] 0: chosen by
 * the engine. [kv]: cache format, null for the bundle's first. [verify]: check every hash first.
 */
data class OpenOptions @JvmOverloads constructor(
    val engine: String? = null,
    val threads: Int = 0,
    val kv: String? = null,
    val verify: Boolean = false,
    val bigCores: Boolean = true,
) {
    init {
        check("threads", threads, threads in 0..256, "0 to 256")
    }
}

/** A session: [context] tokens at most (0: the model's limit), and where drafts come from. */
data class SessionOptions @JvmOverloads constructor(val context: Int = 0, val drafts: Drafts = Drafts.OFF) {
    init {
        check("context", context, context >= 0, "0 or more")
    }
}

/** Why a generation ended. */
enum class Finish { EOS, STOP, LENGTH, CONTEXT, STOPPED }

/**
 * One token. [text] is the text that it completes: whole characters, nothing that may become a stop string.
 * [id] -1: text that was held back until the end. [drafted]: a drafter proposed it and the model agreed.
 */
data class Token(val id: Int, val text: String, val drafted: Boolean)

/** How the last generation went. Seconds are wall-clock time. */
data class Stats(
    val finish: Finish,
    val prompt: Int,
    val cached: Int,
    val generated: Int,
    val calls: Int,
    val drafted: Int,
    val accepted: Int,
    val promptSeconds: Double,
    val seconds: Double,
) {
    /** After the first token. */
    val tokensPerSecond: Double
        get() = if (generated > 1 && seconds > promptSeconds) (generated - 1) / (seconds - promptSeconds) else 0.0
}

internal fun check(name: String, value: Any?, holds: Boolean, allowed: String) {
    if (!holds) throw UsageException("$name: $value is out of range; allowed: $allowed")
}
